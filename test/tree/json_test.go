package tree

import (
	"path"
	"strings"
	"testing"
)

// readsJSON lists the files that read JSON without package jsonfile, and why no decoder error can reach a user.
var readsJSON = map[string]string{
	"internal/image/record.go":                 "says in its own words what is wrong with a record",
	"internal/network/dhcp/file.go":            "a lease that cannot be read is asked for anew",
	"internal/runner/oci/probe.go":             "a choice of the runtime that cannot be read is made anew",
	"internal/runner/oci/errors.go":            "a runtime's line that is not JSON is shown as it is",
	"internal/node/plan/set.go":                "copies a node",
	"internal/site/iosync/steered_end.go":      "an entry that cannot be read is another entry",
	"internal/network/nat/firewall_verdict.go": "what it cannot read of another's rule counts as not known",
	"internal/node/events/events.go":           "a line torn by a power cut is left out",
	"internal/storage/copier/serve.go":         "a job comes from this very program",

	"internal/site/slurm/power/usage.go": "a comment that cannot be read is another program's",

	"internal/storage/copier/copier.go": "so does a report; one that cannot be read is a copier that ended early",

	"internal/runner/runnertest/job.go": "only tests read it",

	"internal/network/netserve/packet.go": "both sides are Berth's own; an answer that cannot be read is no process to go on with",
	"internal/image/pull/pull.go":         "berth-pull, which is installed with berth, writes it",
	"internal/image/registry/serve.go":    "berth, which is installed with berth-pull, writes it",

	"internal/site/agent/office.go":       "an agent of the site writes it; what cannot be read is no order",
	"internal/site/api/server/reports.go": "an agent of the site writes it",

	"internal/site/audit/read.go":         "lines that cannot be read are counted, and the others are told",
	"internal/site/claims/serve.go":       "berth, which is installed with berthd, writes it",
	"internal/site/api/client/client.go":  "an answer that cannot be read is no agent's",
	"internal/site/api/client/command.go": "both sides are Berth's own",
	"internal/site/api/server/session.go": "a client who says what nobody reads is as good as gone",
	"internal/site/upload/upload.go":      "berthd, which is installed with berth, writes it",

	"internal/site/store/storetest/history.go": "only tests read it",

	"internal/runner/machine/control.go":   "both sides are Berth's own; an answer that cannot be read is a machine that ended",
	"internal/runner/machine/qmp.go":       "what cannot be read ends the emulator's line",
	"internal/runner/machine/serve.go":     "a request comes from this very program, what cannot be read is answered by an end of the line",
	"internal/runner/machine/wire/wire.go": "says in its own words that a guest's frame cannot be read",

	"internal/node/keeper/packet.go": "what is wrong with a packet is said when it is decoded strictly",
}

// TestJSONIsReadInWords checks that all other files read JSON by package jsonfile, because the decoder's own errors name Go types.
func TestJSONIsReadInWords(t *testing.T) {
	_, all := sources(t)
	found := 0
	for _, s := range all {
		if s.test || !strings.HasPrefix(s.pkg, "internal/") || path.Base(s.pkg) == "jsonfile" {
			continue
		}
		text := string(s.text)
		if !strings.Contains(text, "json.Unmarshal(") && !strings.Contains(text, "json.NewDecoder(") {
			continue
		}
		found++
		if !strings.Contains(text, "jsonfile.") && readsJSON[s.path] == "" {
			t.Errorf("%s reads JSON: say by package jsonfile what is wrong with it, or here why nobody sees it", s.path)
		}
	}
	if found < 8 {
		t.Errorf("only %d files read JSON: does the test look for the right words?", found)
	}
}
