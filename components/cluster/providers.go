package cluster

import "github.com/spf13/pflag"

// providerFlags are where the kubelet's credential providers are; both are given
// or neither is.
type providerFlags struct {
	// Config is a CredentialProviderConfig or a folder of them.
	Config string `json:"config,omitempty"`
	// Dir is where the programs are.
	Dir string `json:"binDir,omitempty"`
}

func (p *providerFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.Config, "image-credential-provider-config", "", "Path of a CredentialProviderConfig, or of a directory of them.")
	flags.StringVar(&p.Dir, "image-credential-provider-bin-dir", "", "Directory of the credential providers' programs.")
}
