package node

import (
	"strconv"

	"github.com/spf13/pflag"
)

// RegisterSeccompDefault adds the flag --seccomp-default to f. The flag is true by default, and off
// receives its inverse. seccompDefault of a KubeletConfiguration file takes precedence.
//
// https://kubernetes.io/docs/tutorials/security/seccomp/
func RegisterSeccompDefault(f *pflag.FlagSet, off *bool) {
	f.VarPF((*inverse)(off), "seccomp-default", "", "Enable the use of RuntimeDefault as the default seccomp profile for all workloads.").NoOptDefVal = "true"
}

// inverse is a flag whose text is the inverse of the bool: "true" sets the bool to false.
type inverse bool

// String implements pflag.Value.
func (i *inverse) String() string { return strconv.FormatBool(!bool(*i)) }

// Set implements pflag.Value.
func (i *inverse) Set(text string) error {
	on, err := strconv.ParseBool(text)
	*i = inverse(!on)
	return err
}

// Type implements pflag.Value.
func (i *inverse) Type() string { return "bool" }
