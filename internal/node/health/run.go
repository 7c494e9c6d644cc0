package health

import (
	"bytes"
	"os/exec"
	"syscall"

	"berth/internal/sys/fork"
)

// Run runs this program with arguments that make it run a check. The keeper could not run the check itself: it is the parent of
// all nodes, and a command of exec must be an only child. What it runs ends by its own timeout, and with the node.
func Run(args []string) Result {
	var out tail
	cmd := exec.Command(fork.Berth(), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env, cmd.Dir = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	err := fork.Run(cmd)
	return Result{Failed: err != nil, Output: LastLine(out.text.Bytes())}
}

// tail keeps the last bytes that are written to it.
type tail struct{ text bytes.Buffer }

// longestTail is the most bytes that are kept.
const longestTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	end := p[max(0, len(p)-longestTail):]
	t.text.Next(max(0, t.text.Len()+len(end)-longestTail))
	t.text.Write(end) // never fails
	return len(p), nil
}
