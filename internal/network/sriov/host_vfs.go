package sriov

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"berth/internal/host/netif"
	"berth/internal/host/systemd"
	"berth/internal/sys/fault"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Host manages the virtual functions of this host, for berth vf: how many each adapter has, now and at each boot.
type Host struct {
	layout layout.Layout
}

// OnHost returns the Host of one layout. It makes nothing.
func OnHost(l layout.Layout) Host { return Host{layout: l} }

func (h Host) vfLeases() Leases { return Leases(h.layout.VFLeases()) }
func (h Host) vfWishes() Wishes { return Wishes(h.layout.VFs()) }

// VFs lists the adapters with SR-IOV and their virtual functions.
func (h Host) VFs() ([]PF, error) {
	all, err := List(Sys)
	if err != nil {
		return nil, err
	}
	nl, err := netif.Host()
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	for i := range all {
		h.vfLeases().Name(&all[i])
		if err := all[i].ReadAdmins(nl); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// VFChange is the result of EnableVFs or DisableVFs.
type VFChange struct {
	PF      PF     `json:"pf"` // as it is now
	Changed bool   `json:"changed"`
	Unit    string `json:"unit,omitempty"`      // file of the systemd unit that was written; "" where no systemd runs
	Text    string `json:"unit_text,omitempty"` // what is in it
	Removed string `json:"unit_removed,omitempty"`
}

// EnableVFs divides an adapter, now and at each boot. yes allows it for an adapter that carries the host's default route or the
// caller's login session.
func (h Host) EnableVFs(ctx context.Context, name string, n int, yes bool) (*VFChange, error) {
	lock, pf, err := h.lockVFs(ctx, name)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	c := &VFChange{Changed: !Whole(pf, n)}
	if c.Changed && len(pf.VFs) == 0 {
		if err := lifeline(pf, yes); err != nil {
			return nil, err
		}
	}
	if n < 1 || n > pf.Total { // before the wish is kept
		return nil, refuse.Invalidf("adapter %s can have 1 to %d virtual functions, not %d", pf.Name, pf.Total, n)
	}
	if len(pf.VFs) == 0 || len(pf.VFs) == n {
		if err := h.fulfil(ctx, pf, n); err != nil {
			return nil, err
		}
	} else {
		return nil, refuse.Busyf("adapter %s has %d virtual functions, and the kernel changes their number only by way of none: berth vf disable %s first", pf.Name, len(pf.VFs), pf.Name)
	}
	if c.PF, err = Find(Sys, name); err != nil {
		return nil, err
	}
	if systemd.Running() {
		unit := h.vfUnit()
		program, err := systemd.Program()
		if err != nil {
			return nil, err
		}
		unit.Args = slices.Concat([]string{program}, h.layout.Args(), []string{"vf", "restore", "--wait", "30s"})
		if err := unit.Write(); err != nil {
			return nil, err
		}
		c.Unit, c.Text = unit.Path(), unit.Text()
	}
	return c, nil
}

// fulfil keeps the wish and fulfils it. The caller holds the host-wide lock.
func (h Host) fulfil(ctx context.Context, pf PF, n int) error {
	w := Wish{PF: pf.Name, PCI: pf.PCI, VFs: n}
	if err := h.vfWishes().Keep(w); err != nil {
		return err
	}
	fault.Point("wish kept")
	taken, err := netif.HostMACs()
	if err != nil {
		return err
	}
	if err := Enable(ctx, Sys, pf, n, taken); err != nil {
		if now, findErr := Find(Sys, pf.Name); findErr == nil && len(now.VFs) == 0 { // it cannot be
			err = errors.Join(err, h.vfWishes().Forget(pf.PCI))
		}
		return err
	}
	w.Set = true
	return h.vfWishes().Keep(w)
}

// DisableVFs takes an adapter's virtual functions away, for good. One that is in use keeps them all.
func (h Host) DisableVFs(ctx context.Context, name string, yes bool) (*VFChange, error) {
	lock, pf, err := h.lockVFs(ctx, name)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for _, vf := range pf.VFs {
		user, err := UserOf(h.vfLeases(), vf)
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
	if err := h.vfWishes().Forget(pf.PCI); err != nil { // first: repair would make them again
		return nil, err
	}
	fault.Point("wish forgotten")
	if err := Disable(Sys, pf); err != nil {
		return nil, err
	}
	left, err := h.vfWishes().All()
	if err != nil {
		return nil, err
	}
	if systemd.Running() && len(left) == 0 {
		unit := h.vfUnit()
		if err := unit.Remove(); err != nil {
			return nil, err
		}
		c.Removed = unit.Path()
	}
	c.PF, err = Find(Sys, name)
	return c, err
}

// lockVFs finds an adapter and takes the host-wide lock: no node may claim meanwhile.
func (h Host) lockVFs(ctx context.Context, name string) (*os.File, PF, error) {
	if os.Geteuid() != 0 {
		return nil, PF{}, refuse.Cannotf("run berth as root", "only root can change virtual functions")
	}
	if err := h.layout.Make(); err != nil {
		return nil, PF{}, err
	}
	lock, err := netif.Lock(ctx, h.layout.HostLock())
	if err != nil {
		return nil, PF{}, err
	}
	pf, err := Find(Sys, name)
	if err != nil {
		lock.Close()
		return nil, pf, err
	}
	return lock, pf, nil
}

// lifeline refuses to change an adapter that carries the host's default route or the caller's login session, because its link
// goes down for a moment.
func lifeline(pf PF, yes bool) error {
	if yes {
		return nil
	}
	what, err := netif.Lifeline(pf.Links(), loginAddress(os.Getpid()))
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
	s, _ := proc.Read(pid) // of one that is gone: none
	return s.Parent
}

// vfUnit is the unit that makes virtual functions at boot, before the network is set up.
func (h Host) vfUnit() systemd.AtBoot {
	return systemd.AtBoot{
		Dir: systemd.UnitDir, Name: h.layout.Unit(), By: "berth vf enable; berth vf disable removes it with the last adapter",
		About: "Virtual functions of network adapters, as berth vf enable made them",
		Order: "After=systemd-udevd.service\nWants=network-pre.target\nBefore=network-pre.target\n",
	}
}

// RestoreVFs makes the virtual functions again that EnableVFs had made, where they are gone: after a boot, or a reload of
// the adapter's driver. It waits up to wait for adapters that are not there yet.
func (h Host) RestoreVFs(ctx context.Context, wait time.Duration) (did []string, err error) {
	wishes, damaged := h.vfWishes().All()
	if len(wishes) == 0 {
		return nil, damaged
	}
	if err := awaitPFs(ctx, wishes, wait); err != nil {
		return nil, err
	}
	lock, err := netif.Lock(ctx, h.layout.HostLock())
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	all, err := List(Sys)
	if err != nil {
		return nil, err
	}
	errs := []error{damaged}
	for _, w := range wishes {
		pf, ok := ByPCI(all, w.PCI)
		switch {
		case !ok && wait > 0:
			errs = append(errs, refuse.NotFoundf("adapter %s (%s) is not there: is its driver loaded?", w.PF, w.PCI))
		case !ok: // its driver is being reloaded, or it is lent
		case len(pf.VFs) != 0 && w.Set: // as wished, or set by another program and left alone
		default:
			if err := h.fulfil(ctx, pf, w.VFs); err != nil {
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
func awaitPFs(ctx context.Context, wishes []Wish, wait time.Duration) error {
	began := time.Now()
	for {
		all, err := List(Sys)
		if err != nil {
			return err
		}
		there, named := 0, 0
		for _, w := range wishes {
			if pf, ok := ByPCI(all, w.PCI); ok {
				there++
				if pf.Named(Sys) {
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
