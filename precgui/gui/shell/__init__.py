"""The main window around the panels: start-up, navigation, menus, status bar, banners."""
