"""A fleet with a clock of its own, on which a plan of fits runs."""

import heapq

import numpy as np

from skfleet.model_selection._dispatch._fit_times import mark_begun
from skfleet.model_selection._dispatch._scheduler import (
    SLOW_BATCH_SECONDS,
    FitScheduler,
    should_yield,
)

LATENCY = 0.01


class Simulation:
    """Runs a plan on slots with a clock of its own, as workers and the driver do."""

    def __init__(self, fits, seconds, steps=None, *, n_slots, limit=None, on_batch=None):
        self.plan = FitScheduler(n_slots, limit)
        self.plan.add(fits)
        self.seconds, self.steps = seconds, steps or (lambda path: 0.0)
        self.n_slots, self.on_batch = n_slots, on_batch
        self.made, self.bundles, self.most_sent, self.n_steps = [], [], 0, 0
        self.free = [0.0] * n_slots
        self.events = [(SLOW_BATCH_SECONDS, 0, None, None)]
        self.sent, self.now, self.n_events = {}, 0.0, 0
        self.run()

    def send(self):
        while (bundle := self.plan.next_batch()) is not None:
            self.most_sent = max(self.most_sent, self.plan.n_in_flight)
            self.bundles.append(bundle)
            slot = int(np.argmin(self.free))
            begin = max(self.free[slot], self.now + LATENCY)
            done, end = self.work(bundle, begin)
            self.free[slot] = end
            self.n_events += 1
            heapq.heappush(self.events, (end + LATENCY, self.n_events, bundle, done))
            self.sent[id(bundle)] = bundle
            mark_begun(self.sent.values(), self.n_slots, self.now)

    def work(self, bundle, begin):
        done, now, before, block_begin, prefix_seconds = [], begin, None, begin, 0.0
        for n, fit in enumerate(bundle.fits):
            block = (fit.fold, fit.prefix_key) if fit.prefix_key else n
            shared = self.steps(fit.prefix_key) if fit.prefix_key and block != before else 0.0
            self.n_steps += shared > 0
            if block != before:
                block_begin, prefix_seconds, before = now, shared, block
            now += shared + self.seconds(fit)
            done.append((fit, shared + self.seconds(fit), shared))
            following = bundle.fits[n + 1 : n + 2]
            same = (
                following
                and fit.prefix_key
                and (following[0].fold, following[0].prefix_key) == block
            )
            if should_yield(
                now - begin,
                bundle.time_limit,
                group_elapsed=now - block_begin if same else np.inf,
                prefix_seconds=prefix_seconds,
            ):
                break
        return done, now

    def run(self):
        self.send()
        made = set()
        while self.events:
            self.now, _, bundle, done = heapq.heappop(self.events)
            if bundle is None:
                for one in list(self.sent.values()):
                    self.plan.steal_unstarted(one)
            else:
                del self.sent[id(bundle)]
                mark_begun(self.sent.values(), self.n_slots, self.now)
                self.plan.batch_done([seconds for _, seconds, _ in done])
                for fit, seconds, shared in done:
                    self.plan.record_duration(fit, seconds, shared)
                    if fit not in made:
                        made.add(fit)
                        self.made.append(fit)
                        self.end = self.now
                left = bundle.fits[len(done) :]
                self.plan.add(fit for fit in left if fit not in bundle.stolen)
                if self.on_batch is not None:
                    self.on_batch(self, done)
            self.send()

    def ideal(self, fits):
        blocks = {(fit.fold, fit.prefix_key) for fit in fits if fit.prefix_key}
        total = sum(map(self.seconds, fits)) + sum(self.steps(path) for _, path in blocks)
        return max(total / self.n_slots, max(map(self.seconds, fits)))
