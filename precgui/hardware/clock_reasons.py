"""Why the clock of a GPU is as it is: the bits that NVML reports, and those that hold it down."""

from __future__ import annotations

from precgui.sentences import L_

# Bits of nvmlDeviceGetCurrentClocksEventReasons: (word, sentence, worth a warning).
CLOCK_REASONS: dict[int, tuple[str, str, bool]] = {
    0x1: ("idle", L_("Nothing to do, so the clocks are low."), False),
    0x2: (L_("application clocks"), L_("Someone has fixed the clocks."), False),
    0x4: (L_("power cap"), L_("The power limit holds the clocks down."), True),
    0x8: (L_("hardware slowdown"), L_("Temperature or power brake: the hardware halves the clocks."), True),
    0x10: (L_("sync boost"), L_("The clocks follow another GPU of the group."), False),
    0x20: (L_("thermal, software"), L_("Too warm: the driver holds the clocks down."), True),
    0x40: (L_("thermal, hardware"), L_("Too hot: the hardware holds the clocks down."), True),
    0x80: (L_("power brake"), L_("The server's power supply asks for less."), True),
    0x100: (L_("display clocks"), L_("The display setting decides the clocks."), False),
    0x200: (L_("board limit"), L_("A limit of the board holds the clocks down."), True),
    0x400: ("reliability", L_("The voltage limit holds the clocks down."), True),
}
HELD_BITS = sum(bit for bit, (_, _, warns) in CLOCK_REASONS.items() if warns)
