//! What the help of each command ends with: lines to type, and its JSON document.

/// What the help of one command ends with.
pub(super) struct Entry {
    /// The command's path; empty for the top.
    pub(super) command: &'static str,
    /// Lines that can be typed.
    pub(super) examples: &'static [&'static str],
    /// Its document under `-o json`; fields may be added, never removed or given
    /// another meaning. Empty if it prints none.
    pub(super) json: &'static str,
}

/// The help of every command that can be run.
pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        command: "",
        examples: &[
            "holdfast status",
            "holdfast --store 10.0.0.1:21001,10.0.0.2:21001 doctor",
            "holdfast --job llm why",
            "holdfast --job llm events --follow",
            "holdfast --job llm job plan --without host7",
            "holdfast --job llm run open",
            "holdfast --job llm kv put checkpoint/step 4200",
            "holdfast --job llm kv cas owner '' \"$(hostname)\"",
            "holdfast --job llm kv wait ready --timeout 5m && start-training",
            "holdfast --job llm -o json kv watch checkpoint/ | jq .value",
        ],
        json: "",
    },
    Entry {
        command: "status",
        examples: &["holdfast status", "holdfast --store 10.0.0.1:21001 status -o json"],
        json: r#"{"cluster_id", "leader": id or null, "term", "revision", "feature_level",
            "answered_by", "nodes": [{"id", "address", "role", "voter", "last_log", "applied",
            "snapshot", "version", "feature_level", "disk" and "memory": {"free_bytes",
            "reserve_bytes", "low"} or null}], "agents": those of `holdfast agent list`, or
            null, "limits", "joint": {"from", "to"} or null, "majority": {"of", "needed",
            "answering", "missing": [{"node", "address", "silent_ms"}], "lost_ms": null while
            enough answer} or null}"#,
    },
    Entry {
        command: "node list",
        examples: &["holdfast node list"],
        json: r#"{"leader", "nodes": [{"id", "address", "role", "voter", "last_log", "applied",
            "snapshot", "version", "feature_level", "disk" and "memory": {"free_bytes",
            "reserve_bytes", "low"} or null, "behind": entries that the leader's log is ahead,
            or null}]}"#,
    },
    Entry {
        command: "node add",
        examples: &["holdfast node add 4 10.0.0.4:21001"],
        json: r#"{"node"}"#,
    },
    Entry { command: "node promote", examples: &["holdfast node promote 4"], json: r#"{"node"}"# },
    Entry {
        command: "node replace",
        examples: &[
            "holdfast node replace 2 4",
            "holdfast node replace 2 4 10.0.0.4:21001 --force",
        ],
        json: r#"{"node", "replaced"}"#,
    },
    Entry {
        command: "node remove",
        examples: &["holdfast node remove 4"],
        json: r#"{"node", "voters": how many remain, "may_fail": how many of them}; null where no
            node tells"#,
    },
    Entry {
        command: "leader show",
        examples: &["holdfast leader show"],
        json: r#"{"leader", "address", "term"}"#,
    },
    Entry {
        command: "leader transfer",
        examples: &["holdfast leader transfer", "holdfast leader transfer 2"],
        json: r#"{"from", "to"}: who led before, and who leads now"#,
    },
    Entry {
        command: "backup",
        examples: &["holdfast backup monday.backup", "holdfast backup - | zstd > monday.zst"],
        json: r#"{"file", "bytes", "cluster_id", "node", "version", "feature_level", "revision",
            "log_time", "taken_at_ms"}; nothing on standard output for `backup -`"#,
    },
    Entry {
        command: "backup verify",
        examples: &[
            "holdfast backup verify monday.backup",
            "zstd -dc monday.zst | holdfast backup verify -",
        ],
        json: r#"{"file", "bytes", "cluster_id", "node", "version", "feature_level", "revision",
            "log_time", "taken_at_ms"}"#,
    },
    Entry {
        command: "agent list",
        examples: &["holdfast agent list", "holdfast --job llm agent list"],
        json: r#"{"agents": [{"id", "host", "pid", "version", "job", "run", "listens", "draining",
            "clients": [{"pid", "rank", "from", "connections", "quiet": {"last_call", "key",
            "called_ms_ago"}, "activity"}], "clients_left_out", "waits": [{"pid", "rank",
            "keys", "keys_left_out", "at_least", "blocked_ms"}], "waits_left_out", "processes":
            [{"process", "incarnation", "pid", "last_call", "called_ms_ago", "waiting",
            "progress", "silent_ms", "health", "main_thread_silent_ms", "activity"}], "ended":
            [{"pid", "rank", "exit", "ended_ms_ago"}], "tells_quiet", "node", "told_ms_ago"}],
            "unreachable": [node], "older": [node], "left_out", "others": [{"job", "run",
            "keys", "keys_left_out", "at_least", "blocked_ms", "node"}], "others_left_out",
            "left": [{"id", "job", "run", "host", "ended"}]}; "activity" is explained by
            `holdfast why --help`"#,
    },
    Entry {
        command: "waits",
        examples: &["holdfast waits", "holdfast --job llm --run r7 waits"],
        json: r#"{"majority_lost": in words or null, "waits": [{"job", "run", "missing": in words or
            null, "keys", "at_least", "blocked_ms", "waiters": [{"host": or null, "pid", "rank",
            "blocked_ms"}], "waiters_left_out"}], "agents", "unreachable": [id]}"#,
    },
    Entry {
        command: "why",
        examples: &["holdfast why", "holdfast --job llm why", "holdfast --job llm why --follow"],
        json: r#"without --job and --run: {"majority_lost", "jobs": [what is printed of one job, for
            each with anything alive], "jobs_known", "jobs_looked_at", "jobs_left_out"}; of one
            job, and with --follow a line whenever it changes: {"majority_lost": in words or
            null, "job", "run", "open", "over_ms", "cause": {KIND: {…}}, a word or null,
            "agents", "ended": [{"host", "ranks", "pids", "exit": {"code"} or {"signal"} or
            null, "ended_ms_ago", "key": that others wait for or null, "waiting"}], "idle",
            "deadlocks": [{"steps": [{"round", "generation", "process", "host"}],
            "deadline_in_ms"}], "rounds": [{"round", "generation", "open_ms", "arrived",
            "missing_count", "unnamed", "among", "deadline_in_ms", "then", "looks_again_in_ms",
            "waits_for": {KIND: {…}}, "holding": HOLDING or null, "needs": what it needs besides
            those missing, in words, or null, "differing": [{"process", "fields"}],
            "differences": in words, "missing": GROUPS}], "held": [HOLDING: revoked and still
            held, or forming for long, and no open round waits for them], "waits": as `holdfast
            waits` prints them, "iteration", "hosts": GROUPS, "outside": [{"host", "ranks",
            "pids", "programs", "told", "quiet": {"last_call", "key", "called_ms_ago"} or null,
            "activity": ACTIVITY, "alike"}], "unreachable": [id], "log_time_ms",
            "log_time_exact", "revision"}; GROUPS are [{"host", "state": alive, ended or
            never_joined, "cause": in words or null, "standby", "processes": [id], "ranks":
            [rank or null], "for_ms", "waits_in": [round], "told": {"last_call", "progress",
            "health", "main_thread_silent"} or null, "ago": {"called_ms_ago", "silent_ms",
            "main_thread_silent_ms"}, "activity": ACTIVITY, "pid"}]; ACTIVITY is {"main":
            stopped, busy, working, blocked, sleeping or unknown, "place", "for_ms",
            "main_cpu_ms", "cpu_ms", "over_ms"} or null; HOLDING is {"round", "generation",
            "phase", "members", "for_ms", "cause": {KIND: {…}}, a word or null,
            "looks_again_in_ms", "unreleased", "unnamed", "holders": [{"host", "processes":
            [id], "incarnations", "ended": in words or null, "for_ms", "free_in_ms",
            "stop_in_ms"}], "not_ready": GROUPS, "ready_round"}; hosts are all processes of the
            run when nothing waits"#,
    },
    Entry {
        command: "processes",
        examples: &["holdfast --job llm processes", "holdfast --job llm --run r7 processes"],
        json: r#"{"processes": [{"process", "incarnation", "role", "host", "lease", "since",
            "since_ms", "end": {"at", "at_ms", "cause"} unless alive, "member_since", "policy",
            "rank", "waits_in": [round], "labels": each only if there is one}], "watched": [what
            its agent reports of each: as in "processes" of `holdfast agent list`, or null],
            "log_time_ms", "log_time_exact", "revision"}"#,
    },
    Entry {
        command: "process remove",
        examples: &["holdfast --job llm process remove 7 --reason 'ECC errors on host7'"],
        json: r#"{"process", "incarnation", "ended": how many ended by it, "revision"}"#,
    },
    Entry {
        command: "fence check",
        examples: &["holdfast fence check \"$HOLDFAST_FENCE\" && upload checkpoint"],
        json: r#"{"token", "revision"}; exit code 1 if it does not hold"#,
    },
    Entry {
        command: "rounds",
        examples: &["holdfast --job llm rounds"],
        json: r#"{"rounds": [{"round", "generation", "opened_at_ms", "terms", "policy", "differing",
            "waits_for": {KIND: {…}}, "arrived_count", "arrived", "missing_count", "missing",
            "looks_again_at_ms", "deadline_at_ms"}], "log_time_ms", "log_time_exact",
            "revision"}; "policy", "differing", "looks_again_at_ms" and "deadline_at_ms" only if
            there is one; "arrived" is [{"process", "incarnation", "count": of consecutive ones,
            unless 1}]"#,
    },
    Entry {
        command: "comm list",
        examples: &[
            "holdfast --job llm comm list",
            "holdfast --job llm -o json comm list | jq .groups",
        ],
        json: r#"{"groups": [as `holdfast comm show` prints it, without "members", "ranks",
            "arrived", "new" and "next"], "log_time_ms", "log_time_exact", "revision"}"#,
    },
    Entry {
        command: "comm show",
        examples: &[
            "holdfast --job llm comm show world",
            "holdfast --job llm comm show world --generation 12",
        ],
        json: r#"{"round", "terms", "generation", "phase", "formed", "formed_at_ms", "count",
            "members", "ranks", "revoked": {"at", "at_ms", "cause"} if it is, "holding",
            "unreleased_count", "unreleased", "waiting", "newcomers", "looks_again_at_ms",
            "arrived": for the next generation, "new": [id]: those of them that are not members,
            "next": [in words], "log_time_ms", "log_time_exact", "revision"}; "members" are
            [{"process", "incarnation", "count": of consecutive ones, unless 1}], "ranks"
            [{"rank", "count"}]"#,
    },
    Entry {
        command: "comm excuse",
        examples: &["holdfast --job llm comm excuse world 7"],
        json: r#"{"round", "generation", "process", "incarnation", "host": or null, "alive", "left":
            how many keep the next generation from closing or null, "revision"}"#,
    },
    Entry {
        command: "comm revoke",
        examples: &["holdfast --job llm comm revoke world --reason 'NIC of host7 flaps'"],
        json: r#"{"round", "generation", "revoked": false if it was before, "cause": {KIND: {…}},
            "membership", "deadline" or "run_ended", "holding", "revision"}"#,
    },
    Entry {
        command: "iterations",
        examples: &["holdfast --job llm iterations"],
        json: r#"{"iteration", "generation", "members", "ranks", "world_size", "advances":
            [{"iteration", "generation", "members", "run", "revision", "at_ms", "last"}],
            "compacted", "log_time_ms", "log_time_exact", "revision"}; "members" are
            [{"process", "incarnation", "count": of consecutive ones, unless 1}], "ranks"
            [{"rank", "count"}]; those of an advance are how many there were"#,
    },
    Entry {
        command: "events",
        examples: &[
            "holdfast --job llm events --follow",
            "holdfast --job llm events --after 4200 -o json | jq .what",
        ],
        json: r#"a line for each event: {"revision", "at_ms", "run", "what": {KIND: {…}}}"#,
    },
    Entry {
        command: "doctor",
        examples: &["holdfast doctor", "holdfast doctor --python .venv/bin/python"],
        json: r#"{"healthy", "checks": [{"check", "subject", "verdict": ok, warning or failed,
            "found", "next": what to do or null}]}, whether or not it is healthy"#,
    },
    Entry {
        command: "job list",
        examples: &["holdfast job list"],
        json: r#"{"jobs": [{"job", "open_run", "runs", "keys", "bytes"}], "revision"}"#,
    },
    Entry {
        command: "job delete",
        examples: &["holdfast job delete llm"],
        json: r#"{"runs": how many were deleted, "revision"}"#,
    },
    Entry {
        command: "job plan",
        examples: &[
            "holdfast --job llm job plan --without host7",
            "holdfast --job llm job plan --without 12 --without 13",
        ],
        json: r#"{"waits_for": {KIND: {…}} or null if it would begin at once, "iteration",
            "world_size", "members", "ranks", "dropped": [{"process", "incarnation", "why"}],
            "promoted", "stop": {KIND: {…}}, why no process should go on, or null, "revision"};
            from iteration to stop only if it would begin without others"#,
    },
    Entry {
        command: "run list",
        examples: &["holdfast --job llm run list"],
        json: r#"{"runs": [{"run", "open", "opened", "opened_at_ms", "ended", "ended_at_ms", "keys",
            "bytes", "ends_at_ms" and "cause": each only if there is one}], "revision"}"#,
    },
    Entry {
        command: "run open",
        examples: &["holdfast --job llm run open", "holdfast --job llm run open r7"],
        json: r#"{"run", "created", "ended": name or null, "revision"}"#,
    },
    Entry {
        command: "run end",
        examples: &["holdfast --job llm run end r7"],
        json: r#"{"revision"}"#,
    },
    Entry {
        command: "run delete",
        examples: &["holdfast --job llm run delete r7"],
        json: r#"{"revision"}"#,
    },
    Entry {
        command: "kv put",
        examples: &[
            "holdfast kv put greeting hello",
            "holdfast kv put config - < config.json",
            "holdfast kv put owner host7 --if-revision 0",
            "holdfast kv put flags -- --fast",
        ],
        json: r#"{"revision"}"#,
    },
    Entry {
        command: "kv get",
        examples: &["holdfast kv get greeting", "holdfast kv get config --raw > config.json"],
        json: r#"{"key", "value", "created", "modified", "version", "revision"}; under --raw the
            value alone"#,
    },
    Entry {
        command: "kv add",
        examples: &["holdfast kv add steps 1", "holdfast kv add budget -5"],
        json: r#"{"value", "revision"}"#,
    },
    Entry {
        command: "kv max",
        examples: &["holdfast kv max last_step 4200"],
        json: r#"{"value", "revision"}"#,
    },
    Entry {
        command: "kv cas",
        examples: &["holdfast kv cas owner '' host7", "holdfast kv cas owner host7 host8"],
        json: r#"{"swapped", "value": now, null if absent, "revision"}, whether or not it swapped"#,
    },
    Entry {
        command: "kv delete",
        examples: &["holdfast kv delete greeting", "holdfast kv delete --prefix checkpoint/"],
        json: r#"{"deleted": bool, "revision"}; with --prefix or --all {"deleted_keys",
            "changed_keys": written since and kept, "revision"}"#,
    },
    Entry {
        command: "kv txn",
        examples: &[
            "holdfast kv txn --if 'absent(owner)' --then 'put owner host7' --else 'get owner'",
            "holdfast kv txn --if 'value(\"owner\") = \"host7\"' --then 'delete owner' --then 'add freed 1'",
            "holdfast kv txn < swap.txt",
        ],
        json: r#"{"succeeded", "outcomes": [{"value": {"value"}}, "written", {"added": {"value"}} or {"deleted": {"existed"}}], "revision"}, whether or not the
            comparisons held"#,
    },
    Entry {
        command: "kv append",
        examples: &["holdfast kv append log 'step 4200 done'"],
        json: r#"{"revision"}"#,
    },
    Entry {
        command: "kv list",
        examples: &["holdfast kv list", "holdfast kv list checkpoint/ --keys-only"],
        json: r#"{"revision", "entries": [{"key", "value", "created", "modified", "version"}]};
            without "value" under --keys-only; "revision" is the first page's: a watch from the
            next one misses nothing"#,
    },
    Entry {
        command: "kv count",
        examples: &["holdfast kv count checkpoint/"],
        json: r#"{"count", "revision"}"#,
    },
    Entry {
        command: "kv watch",
        examples: &[
            "holdfast kv watch",
            "holdfast -o json kv watch checkpoint/ --from 42 | jq .value",
        ],
        json: r#"a line for each change: {"revision", "job", "run", "type": put, delete, push or pop,
            "key", "value" and "version" of a put, "length" of a queue}; with --follow-runs also
            {"revision", "job", "run", "type": run, "deleted"} when the changes after it are
            those of another run; deleted names a run before it whose changes are missing, if
            there is one"#,
    },
    Entry {
        command: "kv wait",
        examples: &[
            "holdfast kv wait ready --timeout 5m && start-training",
            "holdfast kv wait steps --at-least 100 --timeout never",
        ],
        json: r#"{"revision"}"#,
    },
    Entry {
        command: "kv push",
        examples: &["holdfast kv push work shard-17"],
        json: r#"{"length", "revision"}"#,
    },
    Entry {
        command: "kv pop",
        examples: &["holdfast kv pop work"],
        json: r#"{"value", "length": left after it, "revision"}; under --raw the value alone"#,
    },
    Entry {
        command: "kv length",
        examples: &["holdfast kv length work"],
        json: r#"{"length", "revision"}"#,
    },
    Entry {
        command: "token keygen",
        examples: &["holdfast token keygen tokens.key"],
        json: r#"{"key", "file", "public": the file for the nodes}"#,
    },
    Entry {
        command: "token create",
        examples: &[
            "holdfast token create --key tokens.key --role job --jobs 'llm-*' --name team-a --expires 30d",
            "holdfast token create --key tokens.key --role operator --name alice --expires 12h",
        ],
        json: r#"{"token", "id", "name", "role", "jobs", "made_at_ms", "expires_at_ms", "key"}"#,
    },
    Entry {
        command: "token list",
        examples: &["holdfast token list"],
        json: r#"{"node", "keys": [id], "revoked": [{"token", "until_ms": log time}]}"#,
    },
    Entry {
        command: "token revoke",
        examples: &["holdfast token revoke t0123456789abcdef --keep 30d"],
        json: r#"{"revision"}"#,
    },
    Entry {
        command: "token show",
        examples: &["holdfast token show team-a.token"],
        json: r#"{"id", "name", "role", "jobs", "made_at_ms", "expires_at_ms", "key"}"#,
    },
    Entry {
        command: "config",
        examples: &["holdfast config", "HOLDFAST_JOB=llm holdfast config -o json"],
        json: r#"for each key {"value", "source": flag, environment, file or default, "file"}"#,
    },
    Entry { command: "completions", examples: &["source <(holdfast completions bash)"], json: "" },
    Entry { command: "version", examples: &["holdfast version"], json: r#"{"version"}"# },
];
