package gateway_test

import (
	"errors"
	"testing"

	"berth/internal/host"
	"berth/internal/storage/gateway"
	"berth/internal/sys/refuse"
)

// TestChecks: what a gateway would refuse, doctor says before a node asks for it, with the same remedy.
func TestChecks(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no programs
	all := map[string]host.Check{}
	for _, c := range gateway.Checks(refuse.Cannotf("apt install it", "no server")) {
		all[c.Name] = c
	}
	for name, remedy := range map[string]string{
		"gateway sshfs": "apt install sshfs", "gateway sshfs-direct": "apt install sshfs", "gateway serve": "apt install it",
	} {
		if c := all[name]; c.State != host.Lacks || c.Remedy != remedy || c.Found == "" || c.Mandatory {
			t.Errorf("%s: %+v, want the remedy %s", name, c, remedy)
		}
	}
	for _, c := range gateway.Checks(errors.New("broken")) {
		if c.Name == "gateway serve" && (c.State != host.Lacks || c.Found != "broken") {
			t.Errorf("%+v", c)
		}
	}
	if c := gateway.Checks(nil)[3]; c.State != host.OK {
		t.Errorf("%+v", c)
	}
}
