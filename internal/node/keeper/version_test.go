package keeper

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/sys/refuse"
)

func TestNewer(t *testing.T) {
	for _, tc := range []struct {
		a, b Version
		want bool
	}{
		{Version{1, "v0.1.0"}, Version{1, "v0.1.0"}, false},
		{Version{1, "v0.1.0-12-gabcdef"}, Version{1, "v0.1.0"}, true},
		{Version{1, "v0.1.0"}, Version{1, "v0.1.0-12-gabcdef"}, false},
		{Version{1, "v0.10.0"}, Version{1, "v0.9.3"}, true},
		{Version{1, "v1.0.0"}, Version{2, "v0.1.0"}, false}, // the protocol decides
		{Version{2, "v0.1.0"}, Version{1, "v1.0.0"}, true},
		{Version{1, "devel"}, Version{1, "devel"}, false},
		{Version{1, "v0.1.0-dirty"}, Version{1, "v0.1.0"}, false}, // its numbers do not say
		{Version{1, "v0.1.0"}, Version{1, "0a1b2c3"}, true},
	} {
		if got := tc.a.newer(tc.b); got != tc.want {
			t.Errorf("%s newer than %s: %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
}

// TestExplain checks that a packet that cannot be read names the field, both sides, and which is newer.
func TestExplain(t *testing.T) {
	newer := Version{protocol + 1, "v9.0.0"}
	for _, tc := range []struct {
		packet, want string
		from         Version
	}{
		{`{"do":"watch","colour":1}`, `the field "colour" is not known; the former is newer`, newer},
		{`{"do":"watch","colour":1}`, `the field "colour" is not known; the former is older`, Version{0, "v0.0.1"}},
		{`{"do":"watch","colour":1}`, `the field "colour" is not known; they call themselves the same`, own()},
		{`{"do":"watch","launch":`, "it ends in the middle", newer},
		{`{"do":1}`, "do at line 1", newer},
		{`{"do":"watch"} {}`, "something follows its end", newer},
	} {
		err := Decode([]byte(tc.packet), &request{})
		if err == nil {
			t.Errorf("%s is read", tc.packet)
			continue
		}
		got := explain(err, tc.from).Error()
		if !strings.Contains(got, tc.want) || !strings.Contains(got, tc.from.String()) || !strings.Contains(got, own().String()) {
			t.Errorf("%s: %q, want %q in it", tc.packet, got, tc.want)
		}
	}
}

// TestErrorsKeepTheirKind checks that an error of the keeper's is the same kind of error for the command that asked.
func TestErrorsKeepTheirKind(t *testing.T) {
	carry := func(err error) error {
		text, jsonErr := json.Marshal(replyOf(err))
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		var r reply
		if err := Decode(text, &r); err != nil {
			t.Fatal(err)
		}
		return r.error()
	}
	if err := carry(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if ce, ok := errors.AsType[*runner.CommandError](carry(&runner.CommandError{Code: 127, Command: "x", Why: "it is not there"})); !ok || ce.Code != 127 || ce.Command != "x" {
		t.Errorf("a command that cannot run became %+v", ce)
	}
	if err := carry(refuse.Cannotf("buy one", "no disk")); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("a refusal became %v", err)
	}
	if err := carry(unix.ENOSPC); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk became %v", err)
	}
}

// TestExplainDiffers: a keeper of another version that cannot be upgraded is named, with what to do.
func TestExplainDiffers(t *testing.T) {
	d := &differs{Version{protocol + 1, "v9.0.0"}}
	if err := d.explain(nil); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), d.keeper.String()) || !strings.Contains(err.Error(), "use the newer berth") {
		t.Errorf("of a newer keeper: %v", err)
	}
	if err := d.explain(unix.EBUSY); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "it cannot be upgraded") {
		t.Errorf("of one that refuses: %v", err)
	}
}
