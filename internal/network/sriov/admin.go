package sriov

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Admin is the settings that an adapter keeps for one of its virtual functions. The function itself cannot change them.
type Admin struct {
	MAC       mac.Address `json:"mac"` // all zeros: the VF chooses its own
	VLAN      int         `json:"vlan,omitempty"`
	QoS       int         `json:"qos,omitempty"` // of the VLAN tag
	SpoofChk  bool        `json:"spoofchk"`      // frames with a foreign source MAC are dropped
	Trust     bool        `json:"trust"`
	MaxTxRate uint32      `json:"max_tx_rate,omitempty"` // Mbit/s; 0: no limit. It limits what the VF sends, not what it receives
	State     uint32      `json:"state"`                 // of its link: 0 as the adapter's, 1 always up, 2 down (IFLA_VF_LINK_STATE_*)
}

// readAdmin reads the settings that pf keeps for its VF number index.
func readAdmin(h *netlink.Handle, pf string, index int) (Admin, error) {
	all, err := admins(h, pf)
	if err != nil {
		return Admin{}, err
	}
	a, ok := all[index]
	if !ok {
		return Admin{}, fmt.Errorf("read virtual function %d of %s: the adapter does not tell", index, pf)
	}
	return a, nil
}

// ReadAdmins fills in Admin of the adapter's VFs, as far as its driver reports them.
func (pf *PF) ReadAdmins(h *netlink.Handle) error {
	all, err := admins(h, pf.Name)
	if err != nil {
		return err
	}
	for i := range pf.VFs {
		if a, ok := all[pf.VFs[i].Index]; ok {
			pf.VFs[i].Admin = &a
		}
	}
	return nil
}

func admins(h *netlink.Handle, pf string) (map[int]Admin, error) {
	l, err := h.LinkByName(pf)
	if err != nil {
		return nil, fmt.Errorf("read virtual functions of %s: %w", pf, err)
	}
	all := map[int]Admin{}
	for _, v := range l.Attrs().Vfs {
		all[v.ID] = Admin{
			MAC: mac.Of(v.Mac), VLAN: v.Vlan, QoS: v.Qos, SpoofChk: v.Spoofchk, Trust: v.Trust == 1,
			MaxTxRate: v.MaxTxRate, State: v.LinkState,
		}
	}
	return all, nil
}

// setTime is how long an adapter may decline or ignore a setting of a VF: i40e and ice wait up to 0.8 s for a VF that
// resets before they decline.
const setTime = 3 * time.Second

// Set writes a to the VF number index of pf and reads the settings back: some drivers need a moment, or a second try.
// It writes only settings that differ. A rate that the driver does not accept is left out and not checked.
func (a Admin) Set(h *netlink.Handle, pf string, index int) error {
	err := a.insist(
		func() (Admin, error) { return readAdmin(h, pf, index) },
		func(now Admin) error { return a.write(h, pf, index, now) })
	if err != nil {
		return fmt.Errorf("set virtual function %d of %s: %w", index, pf, err)
	}
	return nil
}

// insist writes until the settings that are read back equal a, for setTime at most.
func (a Admin) insist(read func() (Admin, error), write func(now Admin) error) error {
	var failed error // error of the last write
	end := time.Now().Add(setTime)
	for try := 0; ; try++ {
		time.Sleep(time.Duration(max(try-1, 0)) * 50 * time.Millisecond) // most adapters apply it at once
		now, err := read()
		switch {
		case err != nil:
			return err
		case failed == nil && a.Holds(now):
			return nil
		case time.Now().After(end) && failed != nil:
			return fmt.Errorf("tried for %s: %w", setTime, failed)
		case time.Now().After(end):
			return fmt.Errorf("asked for %s, the adapter has %s after %s", a, now, setTime)
		}
		if failed = write(now); failed != nil && !transient(failed) {
			return failed
		}
	}
}

// transient reports whether an adapter declined only for now, because the VF or the adapter resets: i40e returns
// EAGAIN, ice EBUSY; mlx5 and bnxt return either, or ETIMEDOUT if their firmware does not answer.
func transient(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.EINTR)
}

// Holds reports whether now equals a, except for settings that not every driver has: the rate and the link's state.
func (a Admin) Holds(now Admin) bool {
	return a.MAC == now.MAC && a.VLAN == now.VLAN && a.QoS == now.QoS && a.SpoofChk == now.SpoofChk && a.Trust == now.Trust
}

func (a Admin) String() string {
	return fmt.Sprintf("MAC %s, vlan %d, spoof check %t, trust %t", a.MAC, a.VLAN, a.SpoofChk, a.Trust)
}

func (a Admin) write(h *netlink.Handle, pf string, index int, now Admin) error {
	l, err := h.LinkByName(pf)
	if err != nil {
		return fmt.Errorf("find adapter %s: %w", pf, err)
	}
	for _, c := range []struct {
		differs  bool
		what     string
		optional bool // a driver that does not support it is no failure
		set      func() error
	}{
		{a.Trust != now.Trust, fmt.Sprintf("trust %t", a.Trust), !a.Trust, func() error { return h.LinkSetVfTrust(l, index, a.Trust) }},
		{a.MAC != now.MAC, "MAC " + a.MAC.String(), false, func() error { return h.LinkSetVfHardwareAddr(l, index, a.MAC.HardwareAddr()) }},
		{
			a.VLAN != now.VLAN || a.QoS != now.QoS, fmt.Sprintf("vlan %d", a.VLAN), false,
			func() error { return h.LinkSetVfVlanQos(l, index, a.VLAN, a.QoS) },
		},
		{a.SpoofChk != now.SpoofChk, fmt.Sprintf("spoof check %t", a.SpoofChk), false, func() error { return h.LinkSetVfSpoofchk(l, index, a.SpoofChk) }},
		{a.State != now.State, fmt.Sprintf("link state %d", a.State), true, func() error { return h.LinkSetVfState(l, index, a.State) }},
		{a.MaxTxRate != now.MaxTxRate, fmt.Sprintf("max_tx_rate %d", a.MaxTxRate), true, func() error { return h.LinkSetVfTxRate(l, index, int(a.MaxTxRate)) }},
	} {
		if !c.differs {
			continue
		}
		err := c.set()
		if unsupported := errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL); unsupported && c.optional {
			continue
		} else if errors.Is(err, unix.EOPNOTSUPP) {
			return refuse.Cannotf("use another adapter, or mode macvlan", "the driver of %s cannot set %s: %w", pf, c.what, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		fault.Point("VF's " + c.what + " set")
	}
	return nil
}
