package sync

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/internal/site/intercept/preload"
	"berth/test/built"
	"berth/test/testkit"
)

// TestLinkLocalStandsForMAC: the library takes a client for the node with a link-local address only if the second half of both is the same
// and was made of a MAC: anybody can choose another second half, below a prefix of its own. Files stand for the groups.
func TestLinkLocalStandsForMAC(t *testing.T) {
	t.Parallel()
	needs(t, "python3", "ip", "unshare")
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	testkit.Must(t, built.Preload(t.Context(), dir))
	table := filepath.Join(dir, "table")
	for _, d := range []string{"addresses", "groups"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(table, d), 0o755))
	}
	testkit.Must(t, os.WriteFile(filepath.Join(table, "generation"), binary.LittleEndian.AppendUint64(nil, 1), 0o600))
	tasks := func(node string) string { return filepath.Join(table, "groups", node, "tasks") }
	groups := []string{"_server", "made", "chosen", "first", "second", "whole"}
	for _, g := range groups {
		testkit.Must(t, os.Mkdir(filepath.Dir(tasks(g)), 0o755))
	}
	for address, node := range map[string]string{
		"fe80::200:5eff:fe20:1": "made", "fe80::1234:5678:9abc:def0": "chosen", "fe80::200:5eff:1120:1": "first", "fe80::200:5e11:fe20:1": "second", "2001:db8::7": "whole",
	} {
		testkit.Must(t, os.Symlink(node, filepath.Join(table, "addresses", address)))
	}
	// A server that the library is in, and a client that asks from an address.
	const serves = `import os, socket, subprocess, sys
s = socket.create_server(("::", 0), family=socket.AF_INET6)
env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "BERTH_SYNC_DIR")}
c = subprocess.Popen([sys.executable, "-c", "import socket, sys\nc = socket.create_connection(('::1', int(sys.argv[2])), source_address=(sys.argv[1], 0))\nc.sendall(b'x')\nc.recv(1)", sys.argv[1], str(s.getsockname()[1])], env=env)
a, _ = s.accept()
assert a.recv(1) == b"x"
a.close()
sys.exit(c.wait())`
	const apart = `ip link set lo up && ip address add $0/128 dev lo nodad && LD_PRELOAD=$1 BERTH_SYNC_DIR=$2 exec python3 -c "$3" $0`
	for _, c := range []struct{ from, group string }{
		{"2001:db8::200:5eff:fe20:1", "made"},
		{"fd00:1:2:3:200:5eff:fe20:1", "made"},
		{"2001:db8::7", "whole"},
		{"2001:db8::1234:5678:9abc:def0", "_server"},
		{"2001:db8::200:5eff:1120:1", "_server"},
		{"2001:db8::200:5e11:fe20:1", "_server"},
		{"2001:db8::202:5eff:fe20:1", "_server"},
	} {
		for _, g := range groups {
			testkit.Must(t, os.WriteFile(tasks(g), nil, 0o600))
		}
		out, err := exec.Command("unshare", "--net", "sh", "-c", apart, c.from, filepath.Join(dir, preload.Library), table, serves).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", c.from, err, out)
		}
		for _, g := range groups {
			text, err := os.ReadFile(tasks(g))
			testkit.Must(t, err)
			if went := len(text) > 0; went != (g == c.group) {
				t.Errorf("a client at %s: the thread went into the group of %s: %v; it belongs into that of %s", c.from, g, went, c.group)
			}
		}
	}
}
