package node

import "context"

// stay keeps the keeper alive until the command that makes the node has ended, and with it its lock: that command asks
// for the node to be watched only at its end, and a keeper that is not the init's parent by then never learns its exit
// code.
func (k *keeper) stay(ctx context.Context, name string) {
	if !k.enter() {
		return
	}
	go func() {
		defer k.leave()
		l, err := k.b.lockThere(ctx, name)
		if l == nil || err != nil {
			return // the node is gone, or the keeper ends
		}
		k.b.unlockGone(name, l)
		l.release()
		if k.b.wantsKeeper(name) { // the command may have been killed before it asked
			if err := k.watch(ctx, name); err != nil {
				k.log.Error("watch node", "node", name, "err", err)
			}
		}
	}()
}
