package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

func (a *app) completionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print the completion of a shell",
		Long: `Print a script that teaches a shell to complete berth's commands, flags, the
names of nodes and images, and the keys of berth set. make install puts it in
its place.`,
		Example: `  source <(berth completion bash)
  berth completion fish > ~/.config/fish/completions/berth.fish`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"bash", "zsh", "fish"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(a.Out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(a.Out)
			case "fish":
				return cmd.Root().GenFishCompletion(a.Out, true)
			}
			return errors.ErrUnsupported // not reached: Args refuses other shells
		},
	}
}
