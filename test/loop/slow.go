package loop

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Slow is a loop device that is a bottleneck, as real disks are: its file is on sshfs, by direct I/O, and the stream between sshfs and
// its sftp-server has a rate. Requests wait in the device's own queue, where the kernel's scheduler chooses among them.
type Slow struct {
	Path string
	mu   sync.Mutex
	rate float64   // bytes a second of both directions together; 0: as fast as it goes
	next time.Time // when the stream is free again
}

// burst is how far the stream may be behind its rate and catch up.
const burst = 5 * time.Millisecond

// sftpServer is where Debian has it.
const sftpServer = "/usr/lib/openssh/sftp-server"

// SlowForTest returns such a device, which lasts as long as the test. It has no rate yet.
func SlowForTest(t *testing.T, size int64) *Slow {
	t.Helper()
	for _, p := range []string{"sshfs", sftpServer, "fusermount3"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
	s := &Slow{}
	dir := t.TempDir()
	back, seen := filepath.Join(dir, "back"), filepath.Join(dir, "seen")
	for _, d := range []string{back, seen} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Create(filepath.Join(back, "disk"))
	if err == nil {
		err = errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, size), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.connect(t, exec.Command(sftpServer), exec.Command("sshfs", "-f", "-o", "passive", ":"+back, seen))
	t.Cleanup(func() {
		// A device is detached a moment after it is closed. A mount namespace that somebody else made meanwhile may keep it for longer.
		for end := time.Now().Add(5 * time.Second); exec.Command("fusermount3", "-u", seen).Run() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				if out, err := exec.Command("fusermount3", "-u", "-z", seen).CombinedOutput(); err != nil {
					t.Errorf("unmount the slow disk's file: %v: %s", err, out)
				}
				return
			}
		}
	})
	path := filepath.Join(seen, "disk")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal("sshfs does not show the slow disk's file: ", err)
		}
	}
	through, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer through.Close()
	s.Path = attached(t, through, unix.LO_FLAGS_DIRECT_IO, 0)
	if dio, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(s.Path), "loop/dio")); string(dio) != "1\n" {
		t.Fatalf("%s has no direct I/O: what is read of it would be kept in memory", s.Path)
	}
	return s
}

// connect starts both programs, each with the other at its end of the stream. They end with the test.
func (s *Slow) connect(t *testing.T, server, client *exec.Cmd) {
	t.Helper()
	pipe := func(c *exec.Cmd) (in io.WriteCloser, out io.ReadCloser) {
		in, err := c.StdinPipe()
		if err == nil {
			out, err = c.StdoutPipe()
		}
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return in, out
	}
	toServer, fromServer := pipe(server)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = toServer.Close() // it may be closed
		all.Wait()
		_, _ = client.Wait(), server.Wait() // sshfs says that its connection ended
	})
	toClient, fromClient := pipe(client)
	all.Go(func() { s.pump(fromClient, toServer) })
	all.Go(func() { s.pump(fromServer, toClient) })
}

// pump copies a stream at the rate until it ends.
func (s *Slow) pump(from io.Reader, to io.WriteCloser) {
	defer to.Close()
	block := make([]byte, 64<<10)
	for {
		n, err := from.Read(block)
		if err != nil {
			return
		}
		time.Sleep(s.wait(n))
		if _, err := to.Write(block[:n]); err != nil {
			return
		}
	}
}

func (s *Slow) wait(bytes int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rate == 0 {
		return 0
	}
	if least := time.Now().Add(-burst); s.next.Before(least) {
		s.next = least
	}
	s.next = s.next.Add(time.Duration(float64(bytes) / s.rate * float64(time.Second)))
	return time.Until(s.next)
}

// Rate sets the bytes a second that the device moves; 0 takes the rate away.
func (s *Slow) Rate(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rate = rate
}
