"""The jobs of a study on a cluster: submitted with account, GPUs and time limit as fields, and cancelled."""

from __future__ import annotations

import shutil

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFormLayout, QLineEdit, QMenu, QPushButton, QWidget

from precgui.gui.kit.consent import Consent
from precgui.gui.kit.parts import column, label
from precgui.gui.kit.plain_text import plain_tip, without_key
from precgui.gui.panels.live.study_cells import queued_jobs
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.sweeps.folder import JOBS, SweepFolder
from precgui.words import L_, _, translated

_ABOUT = L_(
    "One array of jobs, a job for each block of runs that share a machine. A job that is preempted, or whose time "
    "ends, has its run write a checkpoint and is queued again. Empty fields are left to the cluster."
)
_TIP = L_("Submit what is left as jobs of Slurm, or cancel them; the grid shows each job with its state in the queue")
MOST_GPUS, MOST_MINUTES = 1024, 100_000


class ClusterDialog(QDialog):
    """`chosen` carries the parameters of submitit when they are accepted."""

    chosen = Signal(dict)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setWindowTitle(_("Submit to the cluster"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.account, self.partition, self.gpus, self.minutes = (QLineEdit() for each in range(4))
        self.gpus.setValidator(QIntValidator(1, MOST_GPUS, self.gpus))
        self.minutes.setValidator(QIntValidator(1, MOST_MINUTES, self.minutes))
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self.submit_button = self.buttons.addButton(_("Submit"), QDialogButtonBox.ButtonRole.AcceptRole)
        form = QFormLayout()
        for title, field in (
            (_("&Account"), self.account),
            (_("&Partition"), self.partition),
            (_("&GPUs of each job"), self.gpus),
            (_("&Minutes of each job"), self.minutes),
        ):
            field.setAccessibleName(without_key(title))
            field.textChanged.connect(lambda _: self._check())
            form.addRow(title, field)
        about = label(translated(_ABOUT), "muted")
        about.setMinimumWidth(360)
        column(about, form, self.buttons, spacing=12, margins=(16, 16, 16, 16), on=self)
        self.buttons.accepted.connect(self._accept)
        self.buttons.rejected.connect(self.reject)

    def _check(self) -> None:
        fields = (self.gpus, self.minutes)
        self.submit_button.setEnabled(all(not field.text() or field.hasAcceptableInput() for field in fields))

    def _accept(self) -> None:
        from precgui.sweeps.slurm import job_settings

        gpus, minutes = (int(field.text()) if field.text() else None for field in (self.gpus, self.minutes))
        account, partition = (field.text().strip() for field in (self.account, self.partition))
        self.chosen.emit(job_settings(account, gpus, minutes, partition))
        self.accept()


class ClusterButton(QPushButton):
    """Seen where this machine can submit jobs, or the study has some."""

    def __init__(self, session: Session, consent: Consent, parent: QWidget | None = None) -> None:
        super().__init__(_("Cluster"), parent)
        self._session, self._consent = session, consent
        self._can_submit = shutil.which("sbatch") is not None
        self.setToolTip(plain_tip(translated(_TIP)))
        menu = QMenu(self)
        self.submit = menu.addAction(_("Submit jobs..."), self.ask)
        self.cancel = menu.addAction(_("Cancel jobs"), self._cancel)
        self.setMenu(menu)

    def refresh(self) -> None:
        """Offer what the study that was read last allows."""
        study = self._session.study
        document = study.grid.document if study.grid is not None else None
        jobs = [member.job for member in document.members if member.job] if document is not None else []
        goes_on = document is not None and queued_jobs(document) > 0
        self.setVisible(document is not None and not study.is_example and (self._can_submit or bool(jobs)))
        self.submit.setEnabled(document is not None and document.left > 0 and not study.is_running and not goes_on)
        self.cancel.setEnabled(goes_on)

    def ask(self) -> ClusterDialog:
        """Ask for the parameters of the jobs."""
        dialog = ClusterDialog(self)
        dialog.chosen.connect(self._submit)
        dialog.open()
        return dialog

    def _submit(self, settings: dict[str, object]) -> None:
        """Submit after consent to code that the study names."""
        study = self._session.study
        if study.grid is None:
            return

        def act(folder: SweepFolder) -> None:
            from precgui.sweeps.slurm import submit_blocks

            submit_blocks(folder, settings)

        self._consent.before(study.grid.tasks, lambda: study.change(act, _("Nothing was submitted: {why}.")))

    def _cancel(self) -> None:
        def act(folder: SweepFolder) -> None:
            from precgui.sweeps.jobs import cancel_jobs, read_jobs

            cancel_jobs(read_jobs(folder.path / JOBS))

        self._session.study.change(act, _("The jobs were not cancelled: {why}."))
