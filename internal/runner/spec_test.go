package runner

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestNoTargetEscapes checks that no spelling of /, /dev, or a path on or below /proc or /sys is accepted as a target.
func TestNoTargetEscapes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := rapid.StringMatching(`(/|\.|\.\.|proc|sys|dev|x|pts){1,8}`).Draw(t, "target")
		if checkTarget(target) != nil {
			return
		}
		clean := filepath.Clean(target)
		for _, p := range []string{"/proc", "/sys"} {
			if clean == p || strings.HasPrefix(clean, p+"/") {
				t.Fatalf("%q is accepted", target)
			}
		}
		if clean == "/" || clean == "/dev" {
			t.Fatalf("%q is accepted", target)
		}
	})
}
