package step

import (
	"encoding/json"
	"fmt"
	"os"
)

// Standing returns the steps of some kinds that stand in a boot, by the journal at path: they are done, and neither they nor the whole journal have begun
// to be undone. It is for a reader that does not hold the lock of the journal's node: a record that is being written is left out, and steps of
// other kinds are, and all of a journal of another boot. The error satisfies errors.Is(err, fs.ErrNotExist) if there is no journal.
func Standing(path, boot string, kinds Kinds) ([]Step, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	j, err := parse(b, func(kind string, data json.RawMessage) (Step, error) {
		if _, wanted := kinds[kind]; !wanted {
			return nil, nil //nolint:nilnil // a decoder says so of what is not wanted
		}
		return kinds.Decode(kind, data)
	})
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	var all []Step
	for _, e := range j.steps {
		if e.step != nil && e.done && !e.undone && j.Phase != Removing && j.Boot == boot {
			all = append(all, e.step)
		}
	}
	return all, nil
}
