package node

import "github.com/spf13/pflag"

// Providers are where the kubelet's credential providers are; both are given
// or neither is.
type Providers struct {
	// Config is a CredentialProviderConfig or a folder of them.
	Config string `json:"config,omitempty"`
	// Dir is where the programs are.
	Dir string `json:"binDir,omitempty"`
}

// Register adds the flags.
func (p *Providers) Register(flags *pflag.FlagSet) {
	flags.StringVar(&p.Config, "image-credential-provider-config", "", "Path of a CredentialProviderConfig, or of a directory of them.")
	flags.StringVar(&p.Dir, "image-credential-provider-bin-dir", "", "Directory of the credential providers' programs.")
}
