package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
)

// start starts the keeper and waits until it listens, or until it found that another one does.
func (c Client) start() error {
	if err := errors.Join(inherit.Free(), c.Layout.Make()); err != nil { // the keeper would say so in its log only
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	defer r.Close()
	log, err := os.OpenFile(c.Layout.KeeperLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.Close()
		return fmt.Errorf("start the keeper: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(fork.Berth(), arguments(c.Layout)...)
	cmd.Args[0] = "berth"
	cmd.Dir = "/"
	cmd.Env = fault.KeeperEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w} // descriptor 3, closed when it is ready
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = fork.Start(cmd)
	w.Close()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	fault.Point("keeper forked")
	go fork.Wait(cmd) //nolint:errcheck // it outlives this command; waiting only spares a zombie
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, _ = r.Read(make([]byte, 1))
	return nil
}
