"""The formulas of docs/jobs.md, with the rates that bench/host.py measured."""


class Rates:
    """Limits of a host, from the rows of its table."""

    def __init__(self, rows):
        self.rows = [row for row in rows if row.seconds]
        self.disk_write, self.disk_read, self.disk_both = (
            next((row.rate() for row in self.rows if row.name == name), 0) for name in
            ("direct writes", "direct reads", "direct reads and writes"))

    def of(self, name, place, threads):
        return next((row.rate() for row in self.rows if (row.name, row.place, row.threads) == (name, place, threads)), 0)

    def read(self, n):
        return self.of("plain readers", "hot", n)

    def write(self, n):
        """Of n plain writers, any number: between those that were measured it grows evenly."""
        known = sorted((row.threads, row.rate()) for row in self.rows if row.name == "plain writers")
        if not known:
            return 0
        above = next((i for i, (threads, _) in enumerate(known) if threads >= n), len(known) - 1)
        (n0, rate0), (n1, rate1) = known[max(above - 1, 0)], known[above]
        return rate1 if n0 == n1 or n >= n1 else rate0 + (rate1 - rate0) * (n - n0) / (n1 - n0)

    def conversions(self, name):
        return [row for row in self.rows if row.name == name]

    def base(self, name):
        """The conversion whose work is known: with the fewest threads, into memory if there is one."""
        return min(self.conversions(name), key=lambda row: (row.place != "memory", row.threads), default=None)

    def slower(self, threads):
        """How many times the work of so many threads at once is that of the fewest: by the computing of one job, the same for all."""
        for name in ("int8", *dict.fromkeys(row.name for row in self.rows)):
            base = self.base(name)
            other = next((row for row in self.conversions(name) if row.place == "memory" and row.threads == threads), None)
            if base and other and base.stages and base.computing() > 0:
                return other.computing() / base.computing()
        return 1


def ratio(n_bytes, rate):
    return n_bytes / rate if rate else 0


def seconds_of(rates, row, source_bytes):
    """By the table of docs/jobs.md."""
    n, base = row.threads, rates.base(row.name)
    computing = base.work() * (rates.slower(n) if n != base.threads else 1) / n
    reading = ratio(source_bytes, rates.read(n))
    if row.place == "memory":
        files = row.n_bytes / row.largest if row.largest else n
        seconds = reading + computing + ratio(row.n_bytes, rates.write(min(n, max(files, 1))))
    elif row.place == "disk":
        seconds = max(reading + computing, ratio(row.n_bytes, rates.disk_write))
    else:
        seconds = max(computing, ratio(source_bytes + row.n_bytes, rates.disk_both))
    return seconds + (row.fixed.median() if row.fixed and row.fixed.seconds else 0)


def model(host):
    """Predicted and measured seconds of every conversion, and what 671B would take."""
    rates, jobs, released = Rates(host.rows), [], []
    for name in host.options.jobs:
        for row in rates.conversions(name):
            seconds, measured = seconds_of(rates, row, host.source_bytes), row.median()
            jobs.append({"job": name, "place": row.place, "threads": row.threads, "model_s": seconds, "measured_s": measured,
                         "percent": 100 * (measured / seconds - 1)})
        planned = next(iter(rates.conversions(f"dry run {name}")), None)
        if planned and rates.base(name):
            n, n_in = max(host.options.threads), 689e9 if host.options.like == "layer" else host.source_bytes
            computing = rates.base(name).work() * rates.slower(n) * n_in / host.source_bytes / n
            reading, writing = ratio(n_in, rates.disk_read), ratio(planned.planned, rates.disk_write)
            both = ratio(n_in + planned.planned, rates.disk_both)
            released.append({"job": name, "computing_s": computing, "reading_s": reading, "writing_s": writing, "one_disk_s": max(computing, both),
                             "two_disks_s": max(computing, reading, writing)})
    slower = {n: rates.slower(n) for n in host.options.threads}
    return {"slower": slower, "jobs": jobs, "671b": released}


def table(of):
    lines = ["", "Work of so many threads at once, as a multiple: " + ", ".join(f"{n}: {times:.2f}" for n, times in of["slower"].items())]
    lines += ["", "| job | place | threads | model s | measured s | measured is |", "|---|---|---|---|---|---|"]
    lines += [f"| {job['job']} | {job['place']} | {job['threads']} | {job['model_s']:.2f} | {job['measured_s']:.2f} | {job['percent']:+.0f}% |"
              for job in of["jobs"]]
    lines += ["", "| 671B on this host | computing, min | reading | writing | one disk | two such disks |", "|---|---|---|---|---|---|"]
    for job in of["671b"]:
        lines.append(f"| {job['job']} | " + " | ".join(f"{job[key] / 60:.1f}" for key in list(job)[1:]) + " |")
    return lines
