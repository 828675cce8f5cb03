"""How long tests wait for handshakes where they do not say."""

from l5._options import ListenOptions, Options

PATIENTLY = (
    "-c",
    "import runpy, sys; from tests._patience import be_patient; be_patient(); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)",
)
"""In place of `-m` in front of a module that tests run as a process: it waits as they do."""


def be_patient() -> None:
    """Let handshakes of this process take a minute: that is what a default is here.

    A machine that leaves a process waiting for five seconds fails no test about something else.
    """
    for options in (Options, ListenOptions):
        defaults = options.__init__.__kwdefaults__
        assert defaults is not None and {"hello_timeout", "connect_timeout"} <= set(defaults)
        defaults.update(hello_timeout=60.0, connect_timeout=60.0)
