package instance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
)

func TestKeys(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("needs ssh-keygen")
	}
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	if _, err := keys(nil); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "ssh-keygen makes one") {
		t.Errorf("without a key: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, ".ssh", "id_ed25519")
	if out, err := exec.Command(keygen, "-q", "-t", "ed25519", "-N", "", "-f", own).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found, err := keys(nil)
	if err != nil || len(found) != 1 || !strings.HasPrefix(found[0], "ssh-ed25519 ") {
		t.Fatalf("%q, %v", found, err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"a private key":      {"", ":1: a private key"}, // own itself
		"not a key":          {"# mine\n\n" + found[0] + "\nssh-ed25519 AAAA\n", ":4: no public key"},
		"nothing":            {"# none\n", "0 keys"},
		"an option of sshd":  {"-oProxyCommand=x\n", ":1: no public key"},
		"a name of a folder": {"/", "is a directory"},
	} {
		file := own
		if c.text == "/" {
			file = dir
		} else if c.text != "" {
			file = filepath.Join(dir, "keys")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := keys([]string{file}); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if two, err := keys([]string{own + ".pub", own + ".pub"}); err != nil || len(two) != 2 {
		t.Errorf("%q, %v", two, err)
	}
}
