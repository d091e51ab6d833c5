package node

import "github.com/spf13/pflag"

// CredentialProviders configures the kubelet's credential providers. Both fields are set or both are empty.
type CredentialProviders struct {
	// Config is the path of a CredentialProviderConfig or of a directory of them.
	Config string `json:"config,omitempty"`
	// Dir is the directory of the provider binaries.
	Dir string `json:"binDir,omitempty"`
}

// Register adds the flags --image-credential-provider-config and --image-credential-provider-bin-dir to flags.
func (p *CredentialProviders) Register(flags *pflag.FlagSet) {
	flags.StringVar(&p.Config, "image-credential-provider-config", "", "Path to a CredentialProviderConfig file, or to a directory of such files.")
	flags.StringVar(&p.Dir, "image-credential-provider-bin-dir", "", "Path to the directory containing the credential provider binaries.")
}
