package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// VM is one virtual machine. Methods with a testing.TB fail the test when the machine cannot do the request.
type VM struct {
	Name   string // "vm1" …
	lab    *Lab
	number int
	want   Machine
	boot   boot
	shell  bool

	process *process // nil: it is off
	qmp     *qmp
	ports   chan *port // those that are free
	bootID  string
}

// process is a running QEMU.
type process struct {
	pid  int
	done chan struct{} // closed when it has ended
	err  error         // why, once done
}

// newVM makes the machine's disks. The machine is off.
func newVM(l *Lab, number int, want Machine, b boot, shell bool) (*VM, error) {
	m := &VM{Name: fmt.Sprintf("vm%d", number+1), lab: l, number: number, want: want, boot: b, shell: shell}
	if m.want.CPUs == 0 {
		m.want.CPUs = 2
	}
	if m.want.Memory == 0 {
		m.want.Memory = 1024
	}
	if err := qemuImg("create", "-q", "-f", "qcow2", "-b", b.root, "-F", "raw", m.file("root")); err != nil {
		return nil, err
	}
	for i, d := range m.want.Disks {
		if d.Root {
			continue
		}
		if err := qemuImg("create", "-q", "-f", "qcow2", m.file(fmt.Sprintf("disk%d", i)), fmt.Sprint(d.Size)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func qemuImg(args ...string) error {
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("qemu-img %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// file returns the path of a file of this machine in the lab's folder.
func (m *VM) file(name string) string { return filepath.Join(m.lab.dir, m.Name+"."+name) }

// ConsoleSocket returns the path of the serial console's socket, in a lab with Options.Console.
func (m *VM) ConsoleSocket() string { return m.file("console.sock") }

// console returns the last output on the machine's serial console and on QEMU's standard error.
func (m *VM) console() string {
	var all []byte
	for _, name := range []string{"console", "qemu"} {
		b, _ := os.ReadFile(m.file(name))
		all = append(all, b[max(0, len(b)-3000):]...)
	}
	return string(all)
}

// power starts the machine. await waits until it answers.
func (m *VM) power(more ...string) error {
	args, err := m.arguments()
	if err != nil {
		return err
	}
	args = append(args, more...)
	for _, old := range m.sockets() {
		_ = os.Remove(old) // of the machine's last run
	}
	if m.process, err = start(args, m.file("qemu")); err != nil {
		return fmt.Errorf("start %s: %w", m.Name, err)
	}
	for _, s := range m.sockets() {
		if err := m.awaitSocket(s); err != nil {
			return err
		}
	}
	if m.qmp, err = dialQMP(m.file("qmp")); err != nil {
		return m.because(err)
	}
	return nil
}

// start starts QEMU from a thread that lives as long as QEMU. The kernel kills QEMU when that thread ends, however this process
// ends (PR_SET_PDEATHSIG refers to the parent thread, not the process).
func start(args []string, log string) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, after QEMU
		out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			started <- err
			return
		}
		defer out.Close()
		cmd := exec.Command("qemu-system-x86_64", args...)
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, <-started
}

// aborted tells whether QEMU ended itself, as it does where one of its assertions fails: of the emulated CPU, "iotlb_to_section:
// Assertion `section_index < d->map.sections_nb' failed" was seen, once in hundreds of boots.
func (m *VM) aborted() bool {
	select {
	case <-m.process.done:
	case <-time.After(2 * time.Second): // its sockets are closed a moment before it has ended
		return false
	}
	exit, ok := errors.AsType[*exec.ExitError](m.process.err)
	return ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGABRT
}

func (m *VM) awaitSocket(path string) error {
	for range 1500 {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-m.process.done:
			return m.because(errors.New("QEMU did not start"))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return m.because(fmt.Errorf("QEMU made no socket %s", path))
}

// await waits until the agent answers on all ports and udev has loaded the drivers.
func (m *VM) await() error {
	if err := m.connect(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootTime)
	defer cancel()
	id, err := m.ping(ctx)
	if err != nil {
		return m.because(fmt.Errorf("boot: %w", err))
	}
	m.bootID = id
	r, err := m.do(ctx, []string{"udevadm", "settle"})
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("udevadm settle: exit code %d: %s", r.Code, r.Err)
	}
	return err
}

// connect connects to the machine's command ports. The agent need not run yet: QEMU buffers what is sent.
func (m *VM) connect() error {
	m.ports = make(chan *port, len(m.portSockets()))
	for _, s := range m.portSockets() {
		p, err := dialPort(s)
		if err != nil {
			return m.because(err)
		}
		m.ports <- p
	}
	return nil
}

// off ends the machine like a power cut. It may be off already.
func (m *VM) off() {
	if m.process == nil {
		return
	}
	select {
	case <-m.process.done:
	default:
		_ = syscall.Kill(m.process.pid, syscall.SIGKILL) // a child that was not waited for: the pid is still its own
		<-m.process.done
	}
	m.qmp.close()
	for len(m.ports) > 0 {
		(<-m.ports).close()
	}
	m.process, m.qmp, m.ports = nil, nil, nil
}

// because adds the output of QEMU and the console to an error.
func (m *VM) because(err error) error {
	return fmt.Errorf("machine %s: %w\n%s", m.Name, err, m.console())
}
