package tree

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestBerthIsLight keeps out of the program berth what makes it start slowly: HTTP, TLS, and go-containerregistry beyond
// its plain types. Package pull says where they are.
func TestBerthIsLight(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/berth")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	plain := []string{"github.com/google/go-containerregistry/pkg/v1", "github.com/google/go-containerregistry/pkg/v1/types"}
	heavier := []string{"net/http", "crypto/tls", "github.com/coder/websocket", "go.etcd.io/", "google.golang.org/grpc", "github.com/prometheus/", "github.com/cilium/ebpf"}
	for dep := range strings.FieldsSeq(string(out)) {
		library := strings.HasPrefix(dep, "github.com/google/go-containerregistry/") && !slices.Contains(plain, dep)
		if library || slices.ContainsFunc(heavier, func(p string) bool { return strings.HasPrefix(dep, p) }) {
			t.Errorf("berth links %s", dep)
		}
	}
}
