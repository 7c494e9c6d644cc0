package slurm

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestBuiltImage: a node of an image that berth image build made of Debian's packages registers, and runs jobs of a user whom it does not know.
func TestBuiltImage(t *testing.T) {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("mmdebstrap is not installed: apt-get install mmdebstrap")
	}
	s := newSite(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*testkit.Bound()) // it downloads some 100 packages
	defer cancel()
	out, err := exec.CommandContext(ctx, s.berth, "--root", s.hosts[0].root, "image", "build", "debian", "--with", "slurmd,munge", "--name", "worker").CombinedOutput()
	if err != nil {
		t.Fatalf("berth image build: %v: %s", err, out)
	}
	s.template(s.hosts[0], "image: host", "image: oci:worker")
	id := s.submit("id -u; hostname; dpkg-query -W slurmd munge | cut -f1 | tr '\\n' ' '; command -v dnsmasq || echo no more\n")
	s.completed(id)
	text, err := os.ReadFile(s.path("work/" + id + ".out"))
	testkit.Must(t, err)
	if got := strings.TrimSpace(string(text)); got != "1500\nst01-01\nmunge slurmd no more" {
		t.Errorf("the job printed %q", got)
	}
	s.until("the node is removed", func() bool { return len(s.nodes()) == 0 })
	if down := s.run("sinfo", "-h", "-R"); down != "" {
		t.Errorf("nodes are down: %s", down)
	}
}
