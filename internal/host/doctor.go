package host

// Doctor checks a host by its files under h and by the results of Try. It only reads files, so that tests can give it an
// archived host.
func Doctor(h Host, tried Tried) []Check {
	d := doctor{Host: h, Tried: tried, built: h.kconfig(), pkg: h.packages()}
	d.facts, d.factsErr = h.Facts()
	var all []Check
	for _, area := range []struct {
		name   string
		checks []Check
	}{
		{"kernel", d.kernel()},
		{"limits", d.limits()},
		{"images and deltas", d.files()},
		{"runtimes", d.runtimes()},
		{"network", d.network()},
		{"virtual machines", d.machines()},
		{"measuring", d.measuring()},
	} {
		for _, c := range area.checks {
			c.Area = area.name
			all = append(all, c)
		}
	}
	return all
}
