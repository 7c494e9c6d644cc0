package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"berth/internal/node/records"
	"berth/internal/sys/step"
)

// replugging is the name of a live change that follows the host's devices, in place of a spec's.
const replugging = "replug"

// settleSet ends a live change whose process was killed: at the new values if the new spec was stored, else at the old.
func (b *Berth) settleSet(ctx context.Context, name string, j *step.Journal) (string, error) {
	s, err := b.Stored(name)
	if err != nil {
		return "", err
	}
	if j.Set.Spec == replugging { // done again by the next command that looks at the devices
		return "", j.EndSet()
	}
	if specID(s) == j.Set.Spec {
		return "set was interrupted: the new values are in force", j.EndSet()
	}
	return "set was interrupted: the old values are in force", j.UndoSet(ctx)
}

// specID identifies a stored spec.
func specID(s *records.Stored) string {
	text, _ := json.Marshal(s) // of plain data: cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
