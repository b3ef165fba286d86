"""Exactly-once bulk writes: staged files, one journal, and the installation into the logs.

Tasks stage (`staging`), anywhere and without the lock. One commit under the lock writes the journal
(`journal`), which decides, and then installs (`install`, `committer`). Whatever is interrupted
after the decision is finished by the next `LogDir.open`; whatever was not decided is swept.
"""
