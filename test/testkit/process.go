package testkit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Again prepares another process of this test program, which is killed when the test ends. It runs one test, given by its name, or none
// (""), where TestMain does its work. By more environment variables, NAME=VALUE, it knows that it is this process.
func Again(t testing.TB, test string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	if test != "" {
		cmd.Args = append(cmd.Args, "-test.run=^"+strings.ReplaceAll(test, "/", "$/^")+"$")
	}
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// Output keeps what processes write, also several at a time, for who reads it meanwhile.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to what is kept.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns all that was written.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Processes returns the command lines of processes that have all of these words in them, by process id. Each argument ends with a NUL.
func Processes(words ...string) map[int]string {
	all := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
next:
	for _, file := range files {
		text, _ := os.ReadFile(file) // of one that has ended: nothing
		for _, w := range words {
			if !bytes.Contains(text, []byte(w)) {
				continue next
			}
		}
		if pid, err := strconv.Atoi(strings.Split(file, "/")[2]); err == nil && len(text) > 0 {
			all[pid] = string(text)
		}
	}
	return all
}
