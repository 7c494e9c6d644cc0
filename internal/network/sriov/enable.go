package sriov

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// enableTime is how long to wait for the links of new virtual functions and their names: half a second each on an
// emulated adapter.
const enableTime = 20 * time.Second

// Enable divides an adapter into n virtual functions, each with a MAC that stays the same after a reboot or a reload of
// the driver. taken holds the MACs that may not be used. Enable completes the work of an Enable that was killed. The
// caller holds the host-wide lock and has written the wish (see Wishes) before.
//
// The MACs are set before any driver binds, because igbvf ignores a MAC that is set later. So Enable first switches
// sriov_drivers_autoprobe off.
func Enable(ctx context.Context, sys string, pf PF, n int, taken map[mac.Address]string) error {
	dev := Device(sys, pf.PCI)
	switch {
	case n < 1 || n > pf.Total:
		return refuse.Invalidf("adapter %s can have 1 to %d virtual functions, not %d", pf.Name, pf.Total, n)
	case len(pf.VFs) != 0 && len(pf.VFs) != n:
		return refuse.Busyf("adapter %s has %d virtual functions, and the kernel changes their number only by way of none: berth vf disable %s first", pf.Name, len(pf.VFs), pf.Name)
	}
	if len(pf.VFs) == 0 {
		if err := write(filepath.Join(dev, "sriov_drivers_autoprobe"), "0"); err != nil {
			return fmt.Errorf("enable virtual functions of %s: %w", pf.Name, err)
		}
		fault.Point("VF drivers held back")
		if err := write(filepath.Join(dev, "sriov_numvfs"), strconv.Itoa(n)); err != nil {
			return refuse.Cannotf("the kernel's log says more: dmesg | tail; often the firmware's SR-IOV setting is off", "enable %d virtual functions of %s: %w", n, pf.Name, err)
		}
		fault.Point("VFs made")
	}
	pf, err := read(sys, pf.Name)
	if err != nil {
		return err
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := giveMACs(h, pf, taken); err != nil {
		return err
	}
	// Some drivers (igbvf) get no MAC from an adapter that is down, and choose a random one.
	if err := adapterUp(h, pf.Name); err != nil {
		return err
	}
	if err := write(filepath.Join(dev, "sriov_drivers_autoprobe"), "1"); err != nil {
		return fmt.Errorf("let drivers bind to virtual functions of %s: %w", pf.Name, err)
	}
	fault.Point("VF drivers let in")
	return bindAll(ctx, sys, h, pf)
}

// giveMACs gives a MAC to each virtual function that has neither a derived MAC nor a driver.
func giveMACs(h *netlink.Handle, pf PF, taken map[mac.Address]string) error {
	l, err := h.LinkByName(pf.Name)
	if err != nil {
		return fmt.Errorf("find adapter %s: %w", pf.Name, err)
	}
	base := mac.Of(l.Attrs().PermHWAddr)
	if base.IsZero() {
		base = netif.MAC(l)
	}
	for _, vf := range pf.VFs {
		now, err := readAdmin(h, pf.Name, vf.Index)
		if err != nil {
			return err
		}
		if vf.Driver != "" || now.MAC == DeriveMAC(base, vf.Index, 0) {
			continue
		}
		for attempt := 0; ; attempt++ {
			now.MAC = DeriveMAC(base, vf.Index, attempt)
			if _, used := taken[now.MAC]; !used {
				break
			}
		}
		if err := now.Set(h, pf.Name, vf.Index); err != nil {
			return err
		}
	}
	return nil
}

// DeriveMAC returns the MAC that a virtual function has while no node uses it: the first six bytes of SHA-256("berth vf
// mac 1\n" ADAPTER "\n" INDEX "\n" ATTEMPT "\n"), ADAPTER being the adapter's permanent MAC, with the group bit cleared
// and the local bit set. attempt is above 0 only if the earlier MACs were taken.
func DeriveMAC(adapter mac.Address, index, attempt int) mac.Address {
	return mac.Derive(fmt.Sprintf("berth vf mac 1\n%s\n%d\n%d\n", adapter, index, attempt))
}

// bindAll binds drivers and waits until each bound virtual function has a link with its final name. If the driver's
// module is missing there are no links; virtual machines can still use the functions.
func bindAll(ctx context.Context, sys string, h *netlink.Handle, pf PF) error {
	var bound []string
	if i := slices.IndexFunc(pf.VFs, func(v VF) bool { return v.Driver == "" }); i >= 0 {
		loadDriver(ctx, sys, pf.VFs[i].PCI)
	}
	for _, vf := range pf.VFs {
		err := bind(sys, vf.PCI)
		if errors.Is(err, errNoDriver) {
			continue
		}
		if err != nil {
			return err
		}
		if vf.Driver == "" {
			bound = append(bound, vf.PCI)
		}
	}
	for _, pci := range bound {
		if _, err := await(ctx, h, pci, enableTime); err != nil {
			return err
		}
	}
	return nil
}

// loadDriver loads the module of a device's driver, unless the administrator has forbidden that (modprobe.d(5),
// blacklist). udev loads it too, but later: until then the function would seem to have no driver.
func loadDriver(ctx context.Context, sys, pci string) {
	if alias := text(Device(sys, pci), "modalias"); alias != "" {
		_ = fork.Run(exec.CommandContext(ctx, "modprobe", "-bq", alias)) // an error is ignored: udev may still load the module
	}
}

// Disable removes an adapter's virtual functions, even those in use. The caller holds the host-wide lock.
func Disable(sys string, pf PF) error {
	dev := Device(sys, pf.PCI)
	if err := write(filepath.Join(dev, "sriov_numvfs"), "0"); err != nil {
		return fmt.Errorf("disable virtual functions of %s: %w", pf.Name, err)
	}
	fault.Point("VFs taken away")
	if text(dev, "sriov_drivers_autoprobe") == "0" { // left by a killed Enable
		if err := write(filepath.Join(dev, "sriov_drivers_autoprobe"), "1"); err != nil {
			return fmt.Errorf("let drivers bind to virtual functions of %s: %w", pf.Name, err)
		}
	}
	return nil
}

// Whole reports whether an adapter has n virtual functions and each has a driver, so that Enable has nothing to do.
func Whole(pf PF, n int) bool {
	return len(pf.VFs) == n && !slices.ContainsFunc(pf.VFs, func(v VF) bool { return v.Driver == "" })
}
