package iosync

import (
	"net/netip"
	"os"
	"slices"
	"time"

	"berth/internal/sys/fault"
)

// claim makes the addresses the node's: their connections do not go to the main server from now on. Those that it had before are refused
// until it is known that no other node has them. The caller holds the lock.
func (w *steered) claim(node string, addresses []netip.Addr) error {
	for _, a := range slices.Clone(w.has[node]) {
		if !slices.Contains(addresses, a) {
			if err := w.withdraw(node, a); err != nil {
				return err
			}
		}
	}
	for _, a := range addresses {
		if err := w.steer.Refuse(a); err != nil {
			return err
		}
		of := w.owner[a]
		if of == node {
			continue
		}
		if of != "" { // another node had it, whose instance must not get its connections
			if err := w.withdraw(of, a); err != nil {
				return err
			}
		}
		fault.Point("connections of a node refused on a file server")
		w.owner[a] = node
		w.has[node] = append(w.has[node], a)
		delete(w.orphans, a)
	}
	return nil
}

// withdraw takes an address from a node: its connections are refused.
func (w *steered) withdraw(node string, a netip.Addr) error {
	if err := w.steer.Withdraw(a); err != nil {
		return err
	}
	delete(w.owner, a)
	if w.has[node] = slices.DeleteFunc(w.has[node], func(b netip.Addr) bool { return a == b }); len(w.has[node]) == 0 {
		delete(w.has, node)
	}
	w.orphans[a] = true
	if one := w.all[node]; one != nil {
		delete(one.serves, a)
	}
	return nil
}

// pass gives addresses that belong to no node to the main server, if that is known. The caller holds the lock.
func (w *steered) pass() error {
	if !w.complete {
		return nil
	}
	for a := range w.orphans {
		if w.named[a] != "" { // of two nodes with one address, one went
			continue
		}
		if err := w.steer.Pass(a); err != nil {
			return err
		}
		delete(w.orphans, a)
	}
	return nil
}

// serve gives the node's addresses to the socket of its instance. The caller holds the lock.
func (w *steered) serve(node string, one *running, socket *os.File) error {
	for _, a := range w.has[node] {
		if err := w.steer.Serve(a, socket); err != nil {
			return err
		}
		one.serves[a] = true
		fault.Point("connections of a node steered to its instance")
	}
	return nil
}

// served reports whether all addresses of a node were given to its instance.
func (one *running) served(addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !one.serves[a] })
}

// lookEvery is how often look does. The kernel has no event for a closed socket.
const lookEvery = 5 * time.Second

// look finds instances that closed the socket that the kernel knew, and looks for the one that they listen at now.
func (w *steered) look() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		lost := false
		for node, one := range w.all {
			if w.ctx.Err() != nil || !one.listens || one.ended || one.leaving {
				continue
			}
			for _, a := range w.has[node] {
				if there, err := w.steer.Serves(a); err == nil && !there && one.serves[a] {
					w.log.Warn("the instance of a node closed its socket: the one that it listens at now is looked for", "node", node, "pid", one.PID)
					one.seek()
					lost = true
					break
				}
			}
		}
		w.mu.Unlock()
		if lost {
			w.wake()
		}
	}
}
