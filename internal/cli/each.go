package cli

import "berth/internal/refuse"

// each does something with every name, goes on after a failure, and returns the failures together. The exit code is the
// first failure's.
func each(names []string, do func(string) error) error {
	var all []error
	for _, n := range names {
		if err := do(n); err != nil {
			all = append(all, err)
		}
	}
	return refuse.Join(all)
}
