package testkit

import (
	"errors"
	"os"
	"testing"
)

// NeedsRoot skips a test of a user who is not root. In CI such a skip fails the run: test/skips.allowed says so.
func NeedsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Must ends a test if one of these is an error.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
