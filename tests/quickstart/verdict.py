"""What came out: the timeline, the check of every acknowledged write, the comparison."""
from training import RANKS, Disturbance, Training
from writer import KEY as WRITER_KEY


def check_writes(training: Training, entries: dict[str, str], where: str) -> list[str]:
    """Everything acknowledged is there, once; `entries` are the run's keys. Returns what is wrong."""
    problems = []

    def wrong(what: str) -> None:
        problems.append(f"run {training.run}: {where} {what}")

    # PyTorch puts a prefix before the names that a script uses.
    prefix = next((key[:-len("steps")] for key in entries if key.endswith("/steps")), "/")
    counted = []
    for rank in range(RANKS):
        for note in training.notes(rank):
            if note["operation"] != "add":
                continue
            counted.append(note["result"])
            found = entries.get(prefix + note["set_key"])
            if found != note["set_value"]:
                wrong(f"has {found!r} for {note['set_key']}, acknowledged was {note['set_value']!r}")
    counters = [("steps", prefix + "steps", counted),
                (WRITER_KEY, "/" + WRITER_KEY, [write.result for write in training.writes])]
    for name, key, results in counters:
        if not results:
            wrong(f"was never asked to count {name}")
        # Adds of 1 that count once each answer 1, 2, 3 … in some order, with none left out.
        if sorted(results) != list(range(1, len(results) + 1)):
            wrong(f"answered {len(results)} adds to {name} with other numbers than 1 to {len(results)}")
        if entries.get(key) != str(len(results)):
            wrong(f"counts {entries.get(key)} for {name}, acknowledged were {len(results)} adds")
    return problems


def acknowledged(training: Training) -> int:
    """Writes that somebody was told are stored: a rank's add acknowledges the set before it, too."""
    adds = sum(note["operation"] == "add" for rank in range(RANKS) for note in training.notes(rank))
    return 2 * adds + len(training.writes)


def print_timeline(training: Training, disturbance: Disturbance) -> None:
    def at(moment: float, text: str) -> None:
        print(f"  {moment - training.started:7.3f} s  {text}")

    after_kill = [write for write in training.writes if write.answered > disturbance.killed]
    in_flight = next(write for write in after_kill if write.sent <= disturbance.killed)
    first = min(write.answered for write in after_kill)
    events = [
        (training.started, "training runs: first step done"),
        (disturbance.killed, f"leader killed: node {disturbance.node}, SIGKILL, with a write in flight"),
        (disturbance.elected, f"new leader: node {disturbance.new_leader}, term {disturbance.new_term}, seen "
                              f"{1000 * (disturbance.elected - disturbance.killed):.0f} ms after the kill"),
        (in_flight.answered, f"the write in flight is acknowledged, {1000 * in_flight.seconds:.0f} ms after it was sent"),
        (disturbance.restarted, f"node {disturbance.node} started again"),
        (disturbance.caught_up, f"node {disturbance.node} back and caught up, "
                                f"{1000 * (disturbance.caught_up - disturbance.restarted):.0f} ms after its start"),
        (max(note["at"] for note in training.notes(0)), "last store call of rank 0"),
    ]
    events += [(note["at"], f"rank 0 makes a new group, through the store: {1000 * note['seconds']:.0f} ms")
               for note in training.notes(0) if note["operation"] == "new_group"]
    if first < in_flight.answered:
        events.append((first, "first write acknowledged after the kill"))
    print(f"\nTimeline of run {training.run}")
    for moment, text in sorted(events):
        at(moment, text)
    pauses = [1000 * training.longest_pause(rank) for rank in range(RANKS)]
    print(f"  longest pause a rank saw: {max(pauses):.0f} ms (ranks: "
          + ", ".join(f"{pause:.0f}" for pause in pauses) + ")")


def compare(undisturbed: Training, disturbed: Training, problems: list[str]) -> bool:
    """Prints both results side by side and the verdict."""
    both = (undisturbed, disturbed)
    results = [{training.result(rank) for rank in range(RANKS)} for training in both]
    rows = [
        ("", *[training.run for training in both]),
        ("final loss", *[sorted(result)[0].split()[1] for result in results]),
        ("digest of the weights", *[sorted(result)[0].split()[3] for result in results]),
        ("longest pause a rank saw", *[f"{1000 * max(map(training.longest_pause, range(RANKS))):.0f} ms"
                                       for training in both]),
        ("longest pause of writes beside it", *[f"{1000 * max(write.seconds for write in training.writes):.0f} ms"
                                               for training in both]),
        ("acknowledged writes", *[str(acknowledged(training)) for training in both]),
    ]
    print()
    for name, *cells in rows:
        print(f"  {name:34}" + "".join(f"{cell:>24}" for cell in cells))
    if any(len(result) != 1 for result in results):
        problems.append("the ranks of one training do not agree on the result")
    if results[0] != results[1]:
        problems.append("the losses or weights of the two trainings differ")
    print()
    for problem in problems:
        print(f"  WRONG: {problem}")
    if problems:
        print("\nVERDICT: FAILED")
    else:
        print("VERDICT: PASSED. The losses are equal to the last bit, and every acknowledged write is in the "
              "store, once.")
    return not problems
