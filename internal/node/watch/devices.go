package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Devices gives running nodes devices back that were plugged in again, and takes from them devices that were unplugged.
type Devices struct {
	Keeper
	Moved  func() (nodes []string, err error)                     // those whose devices are not where they were
	Replug func(ctx context.Context, node string) (string, error) // brings a node in line with what is plugged in
}

// Run follows the host's devices until ctx ends.
func (d *Devices) Run(ctx context.Context) {
	look := make(chan struct{}, 1)
	go d.follow(ctx, look)
	d.lookAfter(ctx, look)
}

// follow pokes look whenever the kernel tells of a device that comes, goes or changes (netlink(7),
// NETLINK_KOBJECT_UEVENT). Events are only a reason to look.
func (d *Devices) follow(ctx context.Context, look chan<- struct{}) {
	for ctx.Err() == nil {
		if err := readDeviceEvents(ctx, look); err != nil && ctx.Err() == nil {
			d.Log.Error("follow the host's devices", "err", err)
		}
		poke(look)
		pause(ctx, time.Second)
	}
}

func readDeviceEvents(ctx context.Context, look chan<- struct{}) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open the kernel's device events: %w", err)
	}
	f := os.NewFile(uintptr(fd), "device events")
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil { // 1: the kernel's own
		return fmt.Errorf("open the kernel's device events: %w", err)
	}
	poke(look) // for devices that came before
	buf := make([]byte, 8192)
	for {
		n, err := f.Read(buf)
		if errors.Is(err, unix.ENOBUFS) { // some were lost
			poke(look)
			continue
		}
		if err != nil {
			return fmt.Errorf("read the kernel's device events: %w", err)
		}
		if bytes.Contains(buf[:n], []byte("\x00MAJOR=")) { // it is of a device with a number
			poke(look)
		}
	}
}

// lookAfter follows, after each event, the devices of a node that have come or gone. It does not wait for a burst to end:
// another disk may have the number of one that went.
func (d *Devices) lookAfter(ctx context.Context, look chan struct{}) {
	var again <-chan time.Time
	var atWork sync.Map // nodes: a command may keep the lock of one for long, and others must not wait for that
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
			again = time.After(settleTime) // a driver may tell more of a device than its first event said
		case <-again:
		}
		d.mend(ctx, &atWork, look)
	}
}

func (d *Devices) mend(ctx context.Context, atWork *sync.Map, look chan<- struct{}) {
	nodes, err := d.Moved()
	if err != nil {
		d.Log.Error("list nodes", "err", err)
	}
	for _, node := range nodes {
		if _, busy := atWork.LoadOrStore(node, true); busy {
			continue
		}
		go d.Work(func() {
			did, err := d.Replug(ctx, node)
			atWork.Delete(node)
			if err != nil {
				d.Log.Error("devices of a node came or went", "node", node, "err", err)
			}
			if did != "" {
				d.Log.Info(did, "node", node)
				poke(look) // for changes meanwhile
			}
		})
	}
}
