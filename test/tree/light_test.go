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
	for dep := range strings.FieldsSeq(string(out)) {
		heavy := dep == "net/http" || dep == "crypto/tls" || strings.HasPrefix(dep, "github.com/google/go-containerregistry/") && !slices.Contains(plain, dep)
		if heavy {
			t.Errorf("berth links %s", dep)
		}
	}
}
