package config

import (
	"fmt"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Overrides are flags of the kubelet that change the configuration of a kubelet in the process of another program. That program
// determines the node name, the paths, the clients and the certificates, so it must refuse the flags for these.
type Overrides struct {
	flags Flags
	set   *pflag.FlagSet
}

// NewOverrides adds the flags of the kubelet to set, which the caller parses.
func NewOverrides(set *pflag.FlagSet) *Overrides {
	o := &Overrides{set: set}
	o.flags.Register(set)
	return o
}

// Load is like the function Load, with the fields of KubeletConfiguration that flags set. It accepts a nil receiver, which has no
// flags.
func (o *Overrides) Load(base []byte, path, dir string) (*kubeletv1beta1.KubeletConfiguration, error) {
	if o == nil {
		return Load(base, path, dir, nil)
	}
	fields, err := o.flags.Fields(o.set.Changed)
	if err != nil {
		return nil, err
	}
	return Load(base, path, dir, fields)
}

// Apply applies the flags that set no field of KubeletConfiguration. It accepts a nil receiver.
func (o *Overrides) Apply(c *Config) error {
	if o == nil {
		return nil
	}
	return o.flags.Override(c, o.set.Changed)
}

// Validate reports invalid settings of file, which may be nil, and of the flags. It accepts a nil receiver.
func (o *Overrides) Validate(file *kubeletv1beta1.KubeletConfiguration) error {
	c := Config{NodeName: "node"}
	if file != nil {
		if err := c.Apply(file); err != nil {
			return err
		}
	}
	if err := o.Apply(&c); err != nil {
		return fmt.Errorf("flags of the kubelet: %w", err)
	}
	return c.Complete()
}
