# SPDX-License-Identifier: Apache-2.0
"""usage: chat_terminal_test.py PROGRAM MODEL EDITS: `episodic chat` as a person meets it, in a pseudo terminal.

Lines are edited and called back, also after a restart; the history is private, bounded and can be left out.
EDITS is 1 where the build has libedit; else lines are taken as the terminal gives them."""
import errno
import json
import os
import pathlib
import pty
import re
import select
import signal
import sys
import tempfile
import termios
import time
import unittest

PROGRAM, MODEL, EDITS = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] == "1"
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
            "{% if add_generation_prompt %}answer: {% endif %}")
UP, LEFT, BACKSPACE = "\033[A", "\033[D", "\x7f"
PATIENCE = 60  # seconds for what takes well under one
CTRL = {c: chr(ord(c) - 64) for c in "ACDRZ"}


def needs_libedit(test):
    return unittest.skipUnless(EDITS, "this build has no libedit")(test)


class Terminal:
    """`episodic chat` behind a pseudo terminal."""

    def __init__(self, folder, *flags, term="xterm"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "EDITRC"))}
            env |= {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "TERM": term, "LANG": "C"}
            os.execve(PROGRAM, [PROGRAM, "chat", *self.arguments(folder), *flags], env)
        self.edits = EDITS and term != "dumb"
        self.seen = ""
        self.all = ""

    def arguments(self, folder):
        return ["--model", str(folder / "model"), "--threads", "1"]

    def read(self, seconds):
        """What comes within that time; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError as e:  # how a pseudo terminal ends
            if e.errno != errno.EIO:
                raise
            data = b""
        text = re.sub(r"\033\[[0-9;?]*[a-zA-Z]|\033[=>]", "", data.decode(errors="replace"))
        self.seen += text
        self.all += text
        return bool(data)

    def wait(self, pattern):
        until = time.monotonic() + PATIENCE
        while not re.search(pattern, self.seen):
            if not self.read(1) or time.monotonic() > until:
                raise AssertionError(f"{pattern!r} does not come; there is {self.all!r}")
        return self

    def at_prompt(self, prompt=r"> $"):
        """libedit shows its prompt before it takes keys singly; a Ctrl-D between the two becomes a NUL."""
        self.wait(prompt)
        until = time.monotonic() + PATIENCE
        while self.edits and self.modes() & termios.ICANON:
            if time.monotonic() > until:
                raise AssertionError(f"lines are not edited at the prompt; there is {self.all!r}")
            time.sleep(0.001)
        return self

    def type(self, keys):
        self.seen = ""
        os.write(self.fd, keys.encode())
        return self

    def say(self, keys):
        """A line, up to the next prompt."""
        self.at_prompt().type(keys + "\r")
        self.wait(r"\n")
        return self.at_prompt()

    def modes(self):
        return termios.tcgetattr(self.fd)[3]

    def end(self, keys=None):
        """How the program ends."""
        if keys is not None:
            self.at_prompt().type(keys)
        until = time.monotonic() + PATIENCE
        while self.read(1):
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"the program does not end; there is {self.all!r}")
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                while self.read(0.2) and select.select([self.fd], [], [], 0)[0]:
                    pass
                break
        self.cooked = self.modes() & (termios.ICANON | termios.ECHO) == termios.ICANON | termios.ECHO
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return status


class ChatInATerminal(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "model").mkdir()
        for file in MODEL.iterdir():
            if file.name != "tokenizer_config.json":
                (self.folder / "model" / file.name).symlink_to(file.resolve())
        config = json.loads((MODEL / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
        (self.folder / "model" / "tokenizer_config.json").write_text(json.dumps(config))
        self.history = self.folder / "state" / "episodic" / "chat_history"

    def start(self, *flags, **how):
        return Terminal(self.folder, "--max-new", "2", "--json", str(self.folder / "json"), *flags, **how)

    def messages(self):
        return [turn["message"] for turn in json.loads((self.folder / "json").read_text())["turns"]]

    def kept(self):
        return self.history.read_text().splitlines()

    @needs_libedit
    def test_a_line_is_edited(self):
        chat = self.start()
        chat.say(f"Whp{BACKSPACE}o cme{LEFT}{LEFT}a")
        chat.say(f"caf\u00e9\u00e9{BACKSPACE} \u6771\u4eac")  # a character is one, however many bytes it has
        chat.say(f"came?{CTRL['A']}Who ")
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertTrue(chat.cooked, "the terminal is not as it was")
        self.assertEqual(self.messages(), ["Who came", "caf\u00e9 \u6771\u4eac", "Who came?"])

    @needs_libedit
    def test_lines_are_called_back_now_and_after_a_restart(self):
        chat = self.start()
        chat.say("What is first?").say("And second?").say(UP + UP).say(f"{CTRL['R']}sec\033")
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertEqual(self.messages(), ["What is first?", "And second?", "What is first?", "And second?"])
        chat = self.start()
        chat.say(UP + " Again.")
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertEqual(self.messages(), ["And second? Again."])

    @needs_libedit
    def test_the_history_is_private_and_keeps_no_line_that_begins_with_a_space(self):
        chat = self.start()
        chat.say("Kept.").say(" Not kept.").type("Two\\\r").at_prompt(r"\n  $").type("lines.\r").wait(r"\n")
        self.assertEqual(chat.end("/quit\r"), 0)
        self.assertEqual(self.messages(), ["Kept.", " Not kept.", "Two\nlines."])
        self.assertEqual(self.kept(), ["Kept.", "Two\\", "lines.", "/quit"])
        self.assertEqual(self.history.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.history.parent.stat().st_mode & 0o777, 0o700)
        self.history.chmod(0o644)
        self.assertEqual(self.start().end(CTRL["D"]), 0)
        self.assertEqual(self.history.stat().st_mode & 0o777, 0o600)

    @needs_libedit
    def test_the_history_is_bounded(self):
        self.history.parent.mkdir(parents=True)
        self.history.write_text("".join(f"line {n}\n" for n in range(2001)) + "x" * 5000 + "\n")
        chat = self.start()
        chat.say(UP).say("y" * 5000)
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertEqual(self.messages()[0], "line 2000")
        self.assertEqual(self.kept(), [f"line {n}" for n in range(1001, 2001)] + ["line 2000"])

    @needs_libedit
    def test_no_history_keeps_none(self):
        chat = self.start("--no-history")
        chat.say("Who?").say(UP)  # within the conversation lines come back all the same
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertEqual(self.messages(), ["Who?", "Who?"])
        self.assertFalse(self.history.exists())

    @needs_libedit
    def test_a_history_that_cannot_be_kept_is_said_once(self):
        self.history.mkdir(parents=True)
        chat = self.start()
        chat.say("Who?").say("What?")
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertEqual(self.messages(), ["Who?", "What?"])
        self.assertEqual(chat.all.count("no history is kept: "), 1)
        self.assertIn("chat_history: cannot be opened", chat.all)

    @needs_libedit
    def test_tab_completes_a_command(self):
        chat = self.start()
        chat.at_prompt().type("/hel\t\r")
        chat.wait("puts a text of any length")
        chat.at_prompt().type("/rec\t\r")
        chat.wait("nothing was recalled")
        self.assertEqual(chat.end(CTRL["D"]), 0)

    @needs_libedit
    def test_ctrl_c_ends_the_program_at_the_prompt_and_leaves_the_terminal_right(self):
        chat = self.start()
        chat.say("Who?")
        self.assertEqual(os.WTERMSIG(chat.end("half a li" + CTRL["C"])), signal.SIGINT)
        self.assertTrue(chat.cooked, "the terminal is not as it was")

    def test_ctrl_c_stops_an_answer_and_the_next_line_is_asked_for(self):
        chat = Terminal(self.folder, "--ignore-eos", "--max-new", "1M", "--max-tokens", "2M", "--json",
                        str(self.folder / "json"))
        chat.at_prompt().type("Who?\r")
        chat.wait(r"\n[^\n]{20}")
        chat.type(CTRL["C"])
        chat.wait("episodic: stopped")
        self.assertEqual(chat.end(CTRL["D"]), 0)
        turns = json.loads((self.folder / "json").read_text())["turns"]
        self.assertEqual([t["finish"] for t in turns], ["cancelled"])

    def test_a_terminal_without_a_cursor_gives_lines_as_they_are(self):
        chat = self.start(term="dumb")
        chat.say("Who?")
        self.assertEqual(chat.end(CTRL["D"]), 0)
        self.assertEqual(self.messages(), ["Who?"])
        self.assertFalse(self.history.exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
