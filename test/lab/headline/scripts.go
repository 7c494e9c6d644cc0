package headline

import _ "embed"

// What runs in the machine.
var (
	//go:embed scene.sh
	scene string
	//go:embed slurm.sh
	slurmScript string
	//go:embed trial.sh
	trialScript string
)
