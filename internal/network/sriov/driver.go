package sriov

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
)

// errNoDriver says that no loaded driver matches a virtual function: its module is not loaded.
var errNoDriver = errors.New("no driver for it is loaded")

// rebind unbinds the driver of a virtual function and binds it again, so that the driver reads the adapter's settings
// anew: igbvf learns a new MAC in no other way. The function's link is then on the host, with a new index and a name
// that the kernel or udev chose.
func rebind(sys, pci string) error {
	driver := filepath.Join(Device(sys, pci), "driver")
	if driverOf(Device(sys, pci)) != "" {
		if err := write(filepath.Join(driver, "unbind"), pci); err != nil {
			return fmt.Errorf("unbind the driver of virtual function %s: %w", pci, err)
		}
		fault.Point("VF unbound")
	}
	return bind(sys, pci)
}

// bind has the kernel bind a driver to a virtual function without one. The error wraps errNoDriver if there is none.
func bind(sys, pci string) error {
	if driverOf(Device(sys, pci)) != "" {
		return nil
	}
	if pf := filepath.Join(Device(sys, pci), "physfn"); text(pf, "sriov_drivers_autoprobe") == "0" { // else the kernel binds none
		if err := write(filepath.Join(pf, "sriov_drivers_autoprobe"), "1"); err != nil {
			return fmt.Errorf("let drivers bind to virtual functions: %w", err)
		}
	}
	if err := write(filepath.Join(sys, "bus/pci/drivers_probe"), pci); err != nil {
		return fmt.Errorf("bind a driver to virtual function %s: %w", pci, err)
	}
	fault.Point("VF bound")
	if driverOf(Device(sys, pci)) == "" {
		return fmt.Errorf("bind a driver to virtual function %s: %w", pci, errNoDriver)
	}
	return nil
}

// Link finds the link of a PCI device in h's namespace; nil if there is none.
func Link(h *netlink.Handle, pci string) (netlink.Link, error) {
	links, err := netif.List(h)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if a := l.Attrs(); a.ParentDevBus == "pci" && a.ParentDev == pci {
			return l, nil
		}
	}
	return nil, nil
}

// await waits until a device has a link in the namespace of h, which is the host's, and until udev has named it. It
// returns nil if no link appears within limit.
func await(ctx context.Context, h *netlink.Handle, pci string, limit time.Duration) (netlink.Link, error) {
	end := time.Now().Add(limit)
	for {
		l, err := Link(h, pci)
		if err != nil {
			return nil, err
		}
		if l != nil && (named(l.Attrs().Index) || time.Now().After(end)) {
			return Link(h, pci) // by its present name
		}
		if time.Now().After(end) {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the link of virtual function %s: %w", pci, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Named reports whether the adapter has its final name: udev renames new links.
func (pf *PF) Named(sys string) bool {
	return named(number(filepath.Join(sys, "class/net", pf.Name), "ifindex", 0))
}

// named reports whether udev has finished with a new link and will not rename it again. That is the case once udev's
// database knows the link (sd_device_get_is_initialized(3)) and does not say that it is being renamed. It returns true
// if no udev runs.
func named(index int) bool {
	if _, err := os.Stat("/run/udev/control"); err != nil {
		return true
	}
	b, err := os.ReadFile("/run/udev/data/n" + strconv.Itoa(index))
	return err == nil && !strings.Contains(string(b), "E:ID_RENAMING=1")
}

func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("write %s to %s: %w", strings.TrimSpace(value), path, err)
	}
	return nil
}
