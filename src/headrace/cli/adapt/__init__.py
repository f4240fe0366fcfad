"""`headrace adapt`: what is asked of models, and which of it a small model could answer."""

HELP = """Learn from your own traffic, and decide what a small model answers.

A server with the table [adapt] collects requests of the keys that have agreed, without personal data. These
commands read what it has collected, in a file beside the store. Nothing leaves this machine unless you name
a judge of a provider, and no routing changes unless you promote.

\b
Examples:
  headrace adapt status
  headrace adapt tasks
  headrace adapt tasks --rename t-3fa2 "order questions"
  headrace adapt diagnose t-3fa2
  headrace adapt train t-3fa2
  headrace adapt shadow t-3fa2
  headrace adapt label t-3fa2
  headrace adapt history t-3fa2
  headrace adapt promote t-3fa2
  headrace adapt rollback t-3fa2
  headrace adapt export --key alice alice.jsonl
  headrace adapt forget --key alice
  headrace adapt simulate --students 1000 --margin 0.02 --alpha 0.05
"""
COMMANDS = {
    "status": "What is collected, and what could be saved.",
    "tasks": "Find tasks in the traffic, and list or rename them.",
    "diagnose": "What a task costs, goes wrong, and could be learned of it.",
    "train": "Make the best student of a task.",
    "shadow": "Judge a student beside what answers today.",
    "label": "Compare answers yourself, where a judge compares them.",
    "history": "Students of a task, and all decisions about them.",
    "promote": "Let a student that is ready answer.",
    "rollback": "Let the large model answer again.",
    "export": "Write all that is kept, of one key or of all.",
    "forget": "Delete all that is kept, of one key, one reply or all.",
    "simulate": "How often the test proposes students, good and bad ones.",
}
