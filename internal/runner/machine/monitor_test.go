package machine

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeyring: what is started from a thread that left its keys cannot read them.
func TestKeyring(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its keyring
		done <- func() error {
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return err
			}
			if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
				return nil // nobody has keys here
			}
			key, err := unix.AddKey("user", "berth-test", []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING)
			if err != nil {
				return err
			}
			if _, err := unix.KeyctlBuffer(unix.KEYCTL_READ, key, make([]byte, 16), 0); err != nil {
				return err
			}
			if err := leaveKeyring(); err != nil {
				return err
			}
			if found, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", "berth-test", 0); err == nil {
				t.Errorf("key %d is found by its name", found)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
