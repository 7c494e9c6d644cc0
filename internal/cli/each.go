package cli

import "berth/internal/refuse"

// each calls do with every name, goes on after a failure, and joins the failures. The exit code is that of the first
// failure.
func each(names []string, do func(string) error) error {
	var all []error
	for _, n := range names {
		if err := do(n); err != nil {
			all = append(all, err)
		}
	}
	return refuse.Join(all)
}
