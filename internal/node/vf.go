package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/link"
	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
	"berth/internal/systemd"
)

func (b *Berth) vfLeases() sriov.Leases { return sriov.Leases(b.Layout.VFLeases()) }
func (b *Berth) vfWishes() sriov.Wishes { return sriov.Wishes(b.Layout.VFs()) }

// VFs lists the adapters with SR-IOV and their virtual functions.
func (b *Berth) VFs() ([]sriov.PF, error) {
	all, err := sriov.List(sriov.Sys)
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer h.Close()
	for i := range all {
		b.vfLeases().Name(&all[i])
		if err := all[i].ReadAdmins(h); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// VFChange says what EnableVFs or DisableVFs did.
type VFChange struct {
	PF      sriov.PF `json:"pf"` // as it is now
	Changed bool     `json:"changed"`
	Unit    string   `json:"unit,omitempty"`      // file of the systemd unit that was written; "" where no systemd runs
	Text    string   `json:"unit_text,omitempty"` // what is in it
	Removed string   `json:"unit_removed,omitempty"`
}

// EnableVFs divides an adapter, now and at each boot. yes allows it for one that the host, or who asks, hangs on.
func (b *Berth) EnableVFs(ctx context.Context, name string, n int, yes bool) (*VFChange, error) {
	lock, pf, err := b.lockVFs(ctx, name)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	c := &VFChange{Changed: !sriov.Whole(pf, n)}
	if c.Changed && len(pf.VFs) == 0 {
		if err := lifeline(pf, yes); err != nil {
			return nil, err
		}
	}
	if n < 1 || n > pf.Total { // before the wish is kept
		return nil, refuse.Invalidf("adapter %s can have 1 to %d virtual functions, not %d", pf.Name, pf.Total, n)
	}
	if len(pf.VFs) == 0 || len(pf.VFs) == n {
		if err := b.fulfil(ctx, pf, n); err != nil {
			return nil, err
		}
	} else {
		return nil, refuse.Busyf("adapter %s has %d virtual functions, and the kernel changes their number only by way of none: berth vf disable %s first", pf.Name, len(pf.VFs), pf.Name)
	}
	if c.PF, err = sriov.Find(sriov.Sys, name); err != nil {
		return nil, err
	}
	if systemd.Running() {
		unit := b.vfUnit()
		if unit.Args, err = b.command("vf", "restore", "--wait", "30s"); err != nil {
			return nil, err
		}
		if err := unit.Write(); err != nil {
			return nil, err
		}
		c.Unit, c.Text = unit.Path(), unit.Text()
	}
	return c, nil
}

// fulfil keeps the wish and fulfils it. The caller holds the host-wide lock.
func (b *Berth) fulfil(ctx context.Context, pf sriov.PF, n int) error {
	w := sriov.Wish{PF: pf.Name, PCI: pf.PCI, VFs: n}
	if err := b.vfWishes().Keep(w); err != nil {
		return err
	}
	step.Fault("wish kept")
	taken, err := link.HostMACs()
	if err != nil {
		return err
	}
	if err := sriov.Enable(ctx, sriov.Sys, pf, n, taken); err != nil {
		if now, findErr := sriov.Find(sriov.Sys, pf.Name); findErr == nil && len(now.VFs) == 0 { // it cannot be
			err = errors.Join(err, b.vfWishes().Forget(pf.PCI))
		}
		return err
	}
	w.Set = true
	return b.vfWishes().Keep(w)
}

// DisableVFs takes an adapter's virtual functions away, for good. One that is in use keeps them all.
func (b *Berth) DisableVFs(ctx context.Context, name string, yes bool) (*VFChange, error) {
	lock, pf, err := b.lockVFs(ctx, name)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for _, vf := range pf.VFs {
		user, err := link.VFUser(b.vfLeases(), vf)
		if err != nil {
			return nil, err
		}
		if user != "" {
			return nil, refuse.Busyf("virtual function %d of %s is in use by %s", vf.Index, pf.Name, user)
		}
	}
	c := &VFChange{Changed: len(pf.VFs) > 0}
	if c.Changed {
		if err := lifeline(pf, yes); err != nil {
			return nil, err
		}
	}
	if err := b.vfWishes().Forget(pf.PCI); err != nil { // first: repair would make them again
		return nil, err
	}
	step.Fault("wish forgotten")
	if err := sriov.Disable(sriov.Sys, pf); err != nil {
		return nil, err
	}
	left, err := b.vfWishes().All()
	if err != nil {
		return nil, err
	}
	if systemd.Running() && len(left) == 0 {
		unit := b.vfUnit()
		if err := unit.Remove(); err != nil {
			return nil, err
		}
		c.Removed = unit.Path()
	}
	c.PF, err = sriov.Find(sriov.Sys, name)
	return c, err
}

// lockVFs finds an adapter and takes the host-wide lock: no node may claim meanwhile.
func (b *Berth) lockVFs(ctx context.Context, name string) (*os.File, sriov.PF, error) {
	if os.Geteuid() != 0 {
		return nil, sriov.PF{}, refuse.Cannotf("run berth as root", "only root can change virtual functions")
	}
	if err := b.makeDirs(); err != nil {
		return nil, sriov.PF{}, err
	}
	lock, err := link.Lock(ctx, b.Layout.HostLock())
	if err != nil {
		return nil, sriov.PF{}, err
	}
	pf, err := sriov.Find(sriov.Sys, name)
	if err != nil {
		lock.Close()
		return nil, pf, err
	}
	return lock, pf, nil
}

// lifeline refuses to touch an adapter that the host, or who asks, hangs on: its link goes down for a moment.
func lifeline(pf sriov.PF, yes bool) error {
	if yes {
		return nil
	}
	what, err := link.Lifeline(pf, loginAddress(os.Getpid()))
	if err != nil || what == "" {
		return err
	}
	return refuse.Busyf("adapter %s, or what is on it, carries %s, and would lose it at least for a moment; if that is meant: --yes", pf.Name, what)
}

// loginAddress is the address of this host by which the SSH session that a process belongs to came in; the zero address
// if it belongs to none. sudo takes SSH_CONNECTION away: hence the ancestors.
func loginAddress(pid int) netip.Addr {
	for ; pid > 1; pid = parent(pid) {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue
		}
		for v := range strings.SplitSeq(string(env), "\x00") {
			if words := strings.Fields(strings.TrimPrefix(v, "SSH_CONNECTION=")); strings.HasPrefix(v, "SSH_CONNECTION=") && len(words) == 4 {
				if a, err := netip.ParseAddr(words[2]); err == nil {
					return a.WithZone("")
				}
			}
		}
	}
	return netip.Addr{}
}

// parent returns the parent of a process, 0 if there is none.
func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	words := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(words) < 2 {
		return 0
	}
	ppid, err := strconv.Atoi(words[1])
	if err != nil {
		return 0
	}
	return ppid
}

// vfUnit is the unit that makes virtual functions at boot, before the network is set up.
func (b *Berth) vfUnit() systemd.AtBoot {
	return systemd.AtBoot{
		Dir: systemd.UnitDir, Name: b.Layout.Unit(), By: "berth vf enable; berth vf disable removes it with the last adapter",
		About: "Virtual functions of network adapters, as berth vf enable made them",
		Order: "After=systemd-udevd.service\nWants=network-pre.target\nBefore=network-pre.target\n",
	}
}

// command is this program with arguments, as a unit calls it.
func (b *Berth) command(args ...string) ([]string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	return slices.Concat([]string{self}, b.rootArgs(), args), nil
}

// RestoreVFs makes the virtual functions again that EnableVFs had made, where they are gone: after a boot, or a reload of
// the adapter's driver. It waits up to wait for adapters that are not there yet.
func (b *Berth) RestoreVFs(ctx context.Context, wait time.Duration) (did []string, err error) {
	wishes, err := b.vfWishes().All()
	if err != nil || len(wishes) == 0 {
		return nil, err
	}
	if err := awaitPFs(ctx, wishes, wait); err != nil {
		return nil, err
	}
	lock, err := link.Lock(ctx, b.Layout.HostLock())
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	all, err := sriov.List(sriov.Sys)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, w := range wishes {
		pf, ok := sriov.ByPCI(all, w.PCI)
		switch {
		case !ok && wait > 0:
			errs = append(errs, refuse.NotFoundf("adapter %s (%s) is not there: is its driver loaded?", w.PF, w.PCI))
		case !ok: // its driver is being reloaded, or it is lent
		case len(pf.VFs) != 0 && w.Set: // as wished, or somebody else's number: their affair
		default:
			if err := b.fulfil(ctx, pf, w.VFs); err != nil {
				errs = append(errs, err)
				continue
			}
			did = append(did, fmt.Sprintf("made %d virtual functions of %s again", w.VFs, pf.Name))
		}
	}
	return did, refuse.Join(errs)
}

// nameTime is how long udev may take to name an adapter that has just come.
const nameTime = 5 * time.Second

// awaitPFs waits for the adapters of wishes, and until those that are there have their names.
func awaitPFs(ctx context.Context, wishes []sriov.Wish, wait time.Duration) error {
	began := time.Now()
	for {
		all, err := sriov.List(sriov.Sys)
		if err != nil {
			return err
		}
		there, named := 0, 0
		for _, w := range wishes {
			if pf, ok := sriov.ByPCI(all, w.PCI); ok {
				there++
				if pf.Named(sriov.Sys) {
					named++
				}
			}
		}
		passed := time.Since(began)
		if (there == len(wishes) || passed >= wait) && (named == there || passed >= max(wait, nameTime)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for adapters: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
