package headline

import _ "embed"

// The scripts that run in the machine.
var (
	//go:embed scene.sh
	scene string
	//go:embed slurm.sh
	slurmScript string
	//go:embed trial.sh
	trialScript string
)
