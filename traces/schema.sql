-- SPDX-License-Identifier: Apache-2.0
--
-- The trace of a run: what was predicted for the ops of its programs, and what each step measured.
--
-- The build turns this text into the program (traces/local.mk). The writer adds application_id and
-- user_version, whose one home is traces/trace.h: raise TDM_TRACE_VERSION with any change here but of comments.
--
-- Names of places, lanes, categories, phases and op kinds are stored as text, as the reports print
-- them, so that a trace explains itself. Times are nanoseconds from the begin of the step, unless
-- said otherwise. A measured row belongs to (run, program, step). A step that takes long comes in parts:
-- `step` has whole ones only, `reached` all, and views of measured steps leave out the others.
-- Several ranks (devices that share a step) run one program, each with ops of its own: rows that differ from rank to
-- rank say whose they are. While a step runs, the trace has that of rank 0 alone.
-- A column holds NULL where there is nothing to say.

CREATE TABLE run (
    id           INTEGER PRIMARY KEY,
    command      TEXT NOT NULL, -- quoted, so that a shell can run it again
    backend      TEXT NOT NULL,
    ran_on       TEXT NOT NULL, -- host name, cores or GPU
    versions     TEXT NOT NULL, -- of tidemark and its libraries
    started_at   TEXT NOT NULL, -- ISO 8601, UTC
    resumed_from TEXT,
    pinned_bytes INTEGER NOT NULL,   -- of host memory
    pageable_bytes INTEGER NOT NULL, -- as far as it grows with context and ops
    ended_at     TEXT,
    ending       TEXT           -- finished, interrupted, failed; NULL: running still, or killed
) STRICT;

-- Programs: written before their first step.

CREATE TABLE program (
    id       INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    schedule TEXT NOT NULL, -- JSON, whole
    ranks    INTEGER NOT NULL
) STRICT;

CREATE TABLE program_place ( -- of each rank
    program         INTEGER NOT NULL REFERENCES program,
    place           TEXT NOT NULL,
    arena_bytes     INTEGER NOT NULL, -- as packed
    live_peak_bytes INTEGER NOT NULL, -- most bytes of allocated buffers; packing cannot do better
    runtime_bytes   INTEGER NOT NULL, -- outside the arena, by the schedule's machine
    PRIMARY KEY (program, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE buffer ( -- those that some item names; the same on all ranks
    program  INTEGER NOT NULL REFERENCES program,
    number   INTEGER NOT NULL,
    name     TEXT NOT NULL,
    place    TEXT NOT NULL,
    category TEXT NOT NULL,
    content  TEXT NOT NULL, -- that it was made for
    bytes    INTEGER NOT NULL,
    offset   INTEGER NOT NULL, -- in the arena of its place
    PRIMARY KEY (program, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE op (
    program            INTEGER NOT NULL REFERENCES program,
    rank               INTEGER NOT NULL, -- from 0
    number             INTEGER NOT NULL, -- in the program order of its rank, from 0
    team_op            INTEGER,          -- of an op that all ranks run together: the how many-th, from 1
    kind               TEXT NOT NULL,
    part               TEXT,             -- weights that it works with
    content            TEXT,             -- of a copy: what it moves
    phase              TEXT NOT NULL,
    lane               TEXT NOT NULL,
    layer              INTEGER,
    chunk              INTEGER,
    tokens             INTEGER NOT NULL,
    flops              INTEGER NOT NULL,
    bytes              INTEGER NOT NULL, -- read and written
    copied_bytes       INTEGER,          -- of a copy on a lane between places
    pairs              INTEGER,          -- (query, key): of attention, or that lists have room for
    fetched_bytes      INTEGER,          -- from the host by an op of the compute lane itself, as predicted
    sent_bytes         INTEGER,          -- and sent there; by a team op: from and to other ranks
    predicted_start_ns INTEGER NOT NULL, -- of a team op: its rank is ready for it, and waits for the others
    predicted_end_ns   INTEGER NOT NULL,
    PRIMARY KEY (program, rank, number)
) STRICT, WITHOUT ROWID;

-- Predicted bytes that hold values, while an op runs: only where they change, and 0 before. Ops are in program order:
-- a value lives from the op that writes it to the last op that uses it, whatever the times of lanes that overlap.
CREATE TABLE memory (
    program     INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    op_number   INTEGER NOT NULL,
    place       TEXT NOT NULL,
    category    TEXT NOT NULL,
    value_bytes INTEGER NOT NULL,
    PRIMARY KEY (program, rank, op_number, place, category),
    FOREIGN KEY (program, rank, op_number) REFERENCES op (program, rank, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE allocation ( -- bytes of allocated buffers while an op runs, only where they change
    program         INTEGER NOT NULL,
    rank            INTEGER NOT NULL,
    op_number       INTEGER NOT NULL,
    place           TEXT NOT NULL,
    allocated_bytes INTEGER NOT NULL,
    PRIMARY KEY (program, rank, op_number, place),
    FOREIGN KEY (program, rank, op_number) REFERENCES op (program, rank, number)
) STRICT, WITHOUT ROWID;

-- Steps: one transaction each, and one each few seconds.

CREATE TABLE reached ( -- how far a step is, of every one that has begun
    run       INTEGER NOT NULL REFERENCES run,
    program   INTEGER NOT NULL REFERENCES program,
    step      INTEGER NOT NULL,
    op_number INTEGER,       -- of rank 0: last op of the compute lane that has ended, of a whole step its last one
    seconds   REAL NOT NULL, -- since it began
    PRIMARY KEY (run, program, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE step (
    finished      INTEGER PRIMARY KEY, -- 1, 2, ... in the order in which steps ended
    run           INTEGER NOT NULL REFERENCES run,
    program       INTEGER NOT NULL REFERENCES program,
    step          INTEGER NOT NULL,
    loss          REAL, -- NULL: not a number
    gradient_norm REAL,
    tokens        INTEGER NOT NULL,
    seconds       REAL NOT NULL,
    UNIQUE (run, program, step),
    FOREIGN KEY (run, program, step) REFERENCES reached (run, program, step)
) STRICT;

CREATE TABLE evaluation ( -- of the weights as of after a step
    run          INTEGER NOT NULL,
    program      INTEGER NOT NULL, -- that trains
    step         INTEGER NOT NULL,
    text         TEXT NOT NULL, -- its name; no step has seen it
    evaluated_by INTEGER NOT NULL REFERENCES program, -- whose ops are not timed
    loss         REAL, -- over the text; NULL: not a number
    tokens       INTEGER NOT NULL,
    seconds      REAL NOT NULL,
    PRIMARY KEY (run, program, step, text),
    FOREIGN KEY (run, program, step) REFERENCES step (run, program, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE timing ( -- of the steps whose ops were timed, as far as they are
    run       INTEGER NOT NULL,
    program   INTEGER NOT NULL,
    step      INTEGER NOT NULL,
    rank      INTEGER NOT NULL,
    op_number INTEGER NOT NULL,
    start_ns  INTEGER NOT NULL, -- of a team op: its rank is ready for it
    end_ns    INTEGER NOT NULL,
    pairs     INTEGER, -- (query, key) pairs of the lists that it made; NULL: not counted
    fetched_bytes INTEGER, -- from the host by the op itself; NULL: not counted
    sent_bytes    INTEGER, -- and sent there
    PRIMARY KEY (run, program, step, rank, op_number),
    FOREIGN KEY (run, program, step) REFERENCES reached (run, program, step),
    FOREIGN KEY (program, rank, op_number) REFERENCES op (program, rank, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE touched ( -- buffers as the launches touched them
    run      INTEGER NOT NULL,
    program  INTEGER NOT NULL,
    step     INTEGER NOT NULL,
    rank     INTEGER NOT NULL,
    buffer   INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    first_op INTEGER NOT NULL,
    last_op  INTEGER NOT NULL,
    PRIMARY KEY (run, program, step, rank, buffer),
    FOREIGN KEY (run, program, step) REFERENCES step (run, program, step),
    FOREIGN KEY (program, buffer) REFERENCES buffer (program, number)
) STRICT, WITHOUT ROWID;

-- Bytes that hold values as observed at the launches, by the rule of `memory`: equal, if the run did what was predicted.
CREATE TABLE observed (
    run         INTEGER NOT NULL,
    program     INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    op_number   INTEGER NOT NULL,
    place       TEXT NOT NULL,
    category    TEXT NOT NULL,
    value_bytes INTEGER NOT NULL,
    PRIMARY KEY (run, program, step, rank, op_number, place, category),
    FOREIGN KEY (run, program, step) REFERENCES step (run, program, step),
    FOREIGN KEY (program, rank, op_number) REFERENCES op (program, rank, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE arena ( -- filled with a pattern before the step, scanned after it
    run           INTEGER NOT NULL,
    program       INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    rank          INTEGER NOT NULL,
    place         TEXT NOT NULL,
    planned_bytes INTEGER NOT NULL, -- as taken
    touched_bytes INTEGER NOT NULL, -- in words that no longer hold the pattern
    highest_byte  INTEGER NOT NULL, -- end of the highest such word
    PRIMARY KEY (run, program, step, rank, place),
    FOREIGN KEY (run, program, step) REFERENCES step (run, program, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE used_memory ( -- what the driver reports, or the system of the process
    run        INTEGER NOT NULL,
    program    INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    rank       INTEGER NOT NULL, -- that uses the device; of the process: 0
    time_ns    INTEGER NOT NULL, -- from the begin of the run
    place      TEXT NOT NULL,
    used_bytes INTEGER NOT NULL,
    arenas     INTEGER NOT NULL, -- in that memory, of as many ranks of the process
    FOREIGN KEY (run, program, step) REFERENCES reached (run, program, step)
) STRICT;

-- Memory: value bytes of a place in all, their peak, and what makes it up, of each rank.

CREATE VIEW predicted_values AS
SELECT program, rank, place, op_number,
       sum(sum(change)) OVER (PARTITION BY program, rank, place ORDER BY op_number) AS value_bytes
FROM (SELECT *, value_bytes - lag(value_bytes, 1, 0) OVER
                (PARTITION BY program, rank, place, category ORDER BY op_number) AS change
      FROM memory)
GROUP BY program, rank, place, op_number;

CREATE VIEW predicted_peak AS
SELECT program, rank, place, op_number, max(value_bytes) AS value_bytes
FROM predicted_values
GROUP BY program, rank, place;

CREATE VIEW predicted_peak_category AS
SELECT program, rank, place, category, value_bytes
FROM (SELECT m.program, m.rank, m.place, m.category, m.value_bytes, max(m.op_number)
      FROM predicted_peak AS p
      JOIN memory AS m ON m.program = p.program AND m.rank = p.rank AND m.place = p.place
                      AND m.op_number <= p.op_number
      GROUP BY m.program, m.rank, m.place, m.category);

CREATE VIEW observed_values AS
SELECT run, program, step, rank, place, op_number,
       sum(sum(change)) OVER (PARTITION BY run, program, step, rank, place ORDER BY op_number)
       AS value_bytes
FROM (SELECT *, value_bytes - lag(value_bytes, 1, 0) OVER
                (PARTITION BY run, program, step, rank, place, category ORDER BY op_number) AS change
      FROM observed)
GROUP BY run, program, step, rank, place, op_number;

CREATE VIEW observed_peak AS
SELECT run, program, step, rank, place, op_number, max(value_bytes) AS value_bytes
FROM observed_values
GROUP BY run, program, step, rank, place;

CREATE VIEW observed_peak_category AS
SELECT run, program, step, rank, place, category, value_bytes
FROM (SELECT o.run, o.program, o.step, o.rank, o.place, o.category, o.value_bytes, max(o.op_number)
      FROM observed_peak AS p
      JOIN observed AS o ON o.run = p.run AND o.program = p.program AND o.step = p.step
                        AND o.rank = p.rank AND o.place = p.place AND o.op_number <= p.op_number
      GROUP BY o.run, o.program, o.step, o.rank, o.place, o.category);

-- Predicted and measured value bytes of each category: the most that it ever has, and its share at the peak of its
-- place; measured: the most of all steps, and at the peak of the highest one.
CREATE VIEW peak_by_category AS
SELECT program, rank, place, category,
       max(predicted_most) AS predicted_most_bytes, max(measured_most) AS measured_most_bytes,
       max(predicted_at_peak) AS predicted_at_peak_bytes,
       max(measured_at_peak) AS measured_at_peak_bytes
FROM (SELECT program, rank, place, category, value_bytes AS predicted_most, NULL AS measured_most,
             NULL AS predicted_at_peak, NULL AS measured_at_peak
      FROM memory
      UNION ALL
      SELECT program, rank, place, category, NULL, value_bytes, NULL, NULL FROM observed
      UNION ALL
      SELECT program, rank, place, category, NULL, NULL, value_bytes, NULL
      FROM predicted_peak_category
      UNION ALL
      SELECT o.program, o.rank, o.place, o.category, NULL, NULL, NULL, o.value_bytes
      FROM observed_peak_category AS o
      JOIN (SELECT run, program, rank, place, step, max(value_bytes)
            FROM observed_peak
            GROUP BY program, rank, place) AS top
        ON top.run = o.run AND top.program = o.program AND top.rank = o.rank
       AND top.place = o.place AND top.step = o.step)
GROUP BY program, rank, place, category;

-- Time: by phase and op kind, by lane, and what the lanes between places carried, of each rank.

CREATE VIEW predicted_time AS
SELECT program, rank, phase, kind, count(*) AS ops, sum(flops) AS flops, sum(bytes) AS bytes,
       sum(predicted_end_ns - predicted_start_ns) / 1e9 AS seconds
FROM op
GROUP BY program, rank, phase, kind;

CREATE VIEW measured_time AS
SELECT t.run, t.program, t.step, t.rank, o.phase, o.kind,
       sum(t.end_ns - t.start_ns) / 1e9 AS seconds
FROM step AS s
JOIN timing AS t ON t.run = s.run AND t.program = s.program AND t.step = s.step
JOIN op AS o ON o.program = t.program AND o.rank = t.rank AND o.number = t.op_number
GROUP BY t.run, t.program, t.step, t.rank, o.phase, o.kind;

CREATE VIEW unfinished AS
SELECT r.run, r.program, r.step, r.op_number, r.seconds
FROM reached AS r
LEFT JOIN step AS s ON s.run = r.run AND s.program = r.program AND s.step = r.step
WHERE s.step IS NULL;

-- Of the ops that have ended.
CREATE VIEW unfinished_time AS
SELECT t.run, t.program, t.step, t.rank, o.phase, o.kind, count(*) AS ops,
       sum(o.predicted_end_ns - o.predicted_start_ns) / 1e9 AS predicted_seconds,
       sum(t.end_ns - t.start_ns) / 1e9 AS measured_seconds
FROM unfinished AS u
JOIN timing AS t ON t.run = u.run AND t.program = u.program AND t.step = u.step
JOIN op AS o ON o.program = t.program AND o.rank = t.rank AND o.number = t.op_number
GROUP BY t.run, t.program, t.step, t.rank, o.phase, o.kind;

-- error: 0.1 where the prediction is a tenth too long.
CREATE VIEW prediction_error AS
SELECT m.run, m.program, m.step, m.rank, m.phase, m.kind, p.ops, p.seconds AS predicted_seconds,
       m.seconds AS measured_seconds,
       CASE WHEN m.seconds > 0 THEN p.seconds / m.seconds - 1 END AS error
FROM measured_time AS m
JOIN predicted_time AS p ON p.program = m.program AND p.rank = m.rank AND p.phase = m.phase
                        AND p.kind = m.kind;

-- A lane stalls while it is idle before its last op ends.
CREATE VIEW predicted_lane AS
SELECT program, rank, lane, count(*) AS ops, sum(copied_bytes) AS copied_bytes,
       sum(predicted_end_ns - predicted_start_ns) / 1e9 AS busy_seconds,
       max(0, max(predicted_end_ns) - sum(predicted_end_ns - predicted_start_ns)) / 1e9
       AS stall_seconds
FROM op
GROUP BY program, rank, lane;

CREATE VIEW stalls AS
SELECT m.run, m.program, m.step, m.rank, m.lane, p.busy_seconds AS predicted_busy_seconds,
       m.busy_ns / 1e9 AS measured_busy_seconds, p.stall_seconds AS predicted_stall_seconds,
       max(0, m.last_ns - m.busy_ns) / 1e9 AS measured_stall_seconds
FROM (SELECT t.run, t.program, t.step, t.rank, o.lane, sum(t.end_ns - t.start_ns) AS busy_ns,
             max(t.end_ns) AS last_ns
      FROM step AS s
      JOIN timing AS t ON t.run = s.run AND t.program = s.program AND t.step = s.step
      JOIN op AS o ON o.program = t.program AND o.rank = t.rank AND o.number = t.op_number
      GROUP BY t.run, t.program, t.step, t.rank, o.lane) AS m
JOIN predicted_lane AS p ON p.program = m.program AND p.rank = m.rank AND p.lane = m.lane;

CREATE VIEW transfer AS
SELECT s.run, s.program, s.step, o.rank, o.lane, count(*) AS copies, sum(o.copied_bytes) AS bytes,
       sum(t.end_ns - t.start_ns) / 1e9 AS seconds -- NULL: ops of this step were not timed
FROM step AS s
JOIN op AS o ON o.program = s.program AND o.copied_bytes IS NOT NULL
LEFT JOIN timing AS t ON t.run = s.run AND t.program = s.program AND t.step = s.step
                     AND t.rank = o.rank AND t.op_number = o.number
GROUP BY s.run, s.program, s.step, o.rank, o.lane;

-- Several ranks: in a team op each waits from when it is ready until the last one is, which is `awaited`.
-- In windows: joins would go through all ops for each of the thousands of team ops of a ring.

CREATE VIEW predicted_team_wait AS
SELECT program, rank, number AS op_number, first_value(rank) OVER last AS awaited,
       max(predicted_start_ns) OVER last - predicted_start_ns AS wait_ns
FROM op
WHERE team_op IS NOT NULL
WINDOW last AS (PARTITION BY program, team_op ORDER BY predicted_start_ns DESC, rank
                ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING);

CREATE VIEW measured_team_op AS
SELECT t.run, t.program, t.step, t.rank, o.number AS op_number, o.team_op, t.start_ns, t.end_ns
FROM step AS s
JOIN op AS o ON o.program = s.program AND o.team_op IS NOT NULL
JOIN timing AS t ON t.run = s.run AND t.program = s.program AND t.step = s.step
                AND t.rank = o.rank AND t.op_number = o.number;

CREATE VIEW measured_team_wait AS
SELECT run, program, step, rank, op_number, first_value(rank) OVER last AS awaited,
       max(start_ns) OVER last - start_ns AS wait_ns
FROM measured_team_op
WINDOW last AS (PARTITION BY run, program, step, team_op ORDER BY start_ns DESC, rank
                ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING);

-- What a rank does in a step: until its last op ends, on its compute lane without team ops, in team ops, waits
-- included.
CREATE VIEW predicted_rank AS
SELECT program, rank, count(*) AS ops, max(predicted_end_ns) / 1e9 AS step_seconds,
       total((lane = 'compute' AND team_op IS NULL) * (predicted_end_ns - predicted_start_ns)) / 1e9
       AS compute_seconds,
       total((team_op IS NOT NULL) * (predicted_end_ns - predicted_start_ns)) / 1e9 AS team_seconds,
       sum(CASE WHEN team_op IS NOT NULL THEN ifnull(fetched_bytes, 0) ELSE 0 END) AS received_bytes,
       sum(CASE WHEN team_op IS NOT NULL THEN ifnull(sent_bytes, 0) ELSE 0 END) AS sent_bytes,
       ifnull(sum(copied_bytes), 0) AS copied_bytes
FROM op
GROUP BY program, rank;

CREATE VIEW measured_rank AS
SELECT t.run, t.program, t.step, t.rank, max(t.end_ns) / 1e9 AS step_seconds,
       total((o.lane = 'compute' AND o.team_op IS NULL) * (t.end_ns - t.start_ns)) / 1e9
       AS compute_seconds,
       total((o.team_op IS NOT NULL) * (t.end_ns - t.start_ns)) / 1e9 AS team_seconds
FROM step AS s
JOIN timing AS t ON t.run = s.run AND t.program = s.program AND t.step = s.step
JOIN op AS o ON o.program = t.program AND o.rank = t.rank AND o.number = t.op_number
GROUP BY t.run, t.program, t.step, t.rank;
