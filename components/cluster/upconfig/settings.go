package upconfig

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/internal/base/strictyaml"
)

// setting is the value of a flag of `up` in a configuration file.
type setting struct {
	// values has one element, or any number for a flag that is a list.
	values []string
	// position is the file and line, for messages.
	position string
}

// noKeys maps the flags of `up` that are not keys of UpConfiguration to the reason.
var noKeys = map[string]string{
	"config":     "the file cannot name another file; use drop-in files in the directory config.yaml.d",
	"root":       "the path of the file depends on it; set it on the command line",
	"foreground": "it describes one call of the command; set it on the command line",
	"service":    "it installs the service, which reads this file; set it on the command line",
	"output":     "it describes one call of the command; set it on the command line",
	"help":       "it describes one call of the command",
}

// acronyms maps the words of flags that are acronyms to their form in keys.
var acronyms = map[string]string{"cidr": "CIDR", "dns": "DNS", "ip": "IP", "url": "URL"}

// keyOf returns the key of UpConfiguration for a flag, for example clusterCIDR for cluster-cidr.
func keyOf(flag string) string {
	words := strings.Split(flag, "-")
	for i, w := range words {
		switch {
		case i == 0 || w == "":
		case acronyms[w] != "":
			words[i] = acronyms[w]
		default:
			words[i] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(words, "")
}

// keys returns the flags of `up` by their keys in UpConfiguration, without the flags that are not keys.
func keys(flags *pflag.FlagSet) map[string]*pflag.Flag {
	out := map[string]*pflag.Flag{}
	flags.VisitAll(func(f *pflag.Flag) {
		if noKeys[f.Name] == "" {
			out[keyOf(f.Name)] = f
		}
	})
	return out
}

// arguments are the keys of UpConfiguration that are not flags: extra arguments of components for which ClusterConfiguration has none.
type arguments struct {
	Kubelet []kubeadmapi.Argument `json:"kubeletExtraArgs,omitempty"`
	Proxy   []kubeadmapi.Argument `json:"kubeProxyExtraArgs,omitempty"`
}

// kubeletArgs and proxyArgs are the keys of UpConfiguration for extra arguments of the kubelet and the service proxy.
const (
	kubeletArgs = "kubeletExtraArgs"
	proxyArgs   = "kubeProxyExtraArgs"
)

// checkUp adds errors for unknown keys and invalid values of an UpConfiguration.
func (r *reader) checkUp(doc *strictyaml.Node) {
	known := keys(r.flags)
	rest := *doc
	rest.Fields = nil
	for _, f := range doc.Fields {
		switch f.Key {
		case "kind", "apiVersion":
			continue
		case kubeletArgs, proxyArgs:
			rest.Fields = append(rest.Fields, f)
			continue
		}
		if flag := known[f.Key]; flag != nil {
			r.checkSetting(f, flag)
		} else {
			r.fail(f.Position(), "%s: %s", Kind, unknownKey(f.Key, known))
		}
	}
	_, errs := strictyaml.Decode[arguments](&rest)
	for _, err := range errs {
		r.fail(err.Position, "%s: %s: %v", Kind, err.Path, err.Cause)
	}
}

// unknownKey returns the error message for an unknown key of UpConfiguration. It names the correct key if only the
// spelling is wrong, and the counterpart of a key of k3s.
func unknownKey(key string, known map[string]*pflag.Flag) string {
	if reason := noKeys[strings.TrimLeft(key, "-")]; reason != "" {
		return key + ": not supported in a file: " + reason
	}
	similar := keyOf(strings.ReplaceAll(strings.TrimLeft(key, "-"), "_", "-"))
	for _, name := range sortedKeys(known) {
		if strings.EqualFold(name, similar) {
			return key + ": unknown key: did you mean " + name + "?"
		}
	}
	if hint := k3sHint(key); hint != "" {
		return key + ": unknown key: it is a setting of k3s; " + hint
	}
	return key + ": unknown key: `hyperkube config print --defaults` lists all keys"
}

// checkSetting adds an error if the type or the value of a key is wrong. An empty value is correct: it deletes the key
// of an earlier file.
func (r *reader) checkSetting(f strictyaml.Field, flag *pflag.Flag) {
	if f.Value.Kind == strictyaml.Scalar && f.Value.Scalar == nil {
		return // deletes the key of an earlier file
	}
	values, problem := valuesOf(f.Value, flag)
	if problem == "" {
		if err := setValue(flag, values); err != nil {
			problem = err.Error()
		}
	}
	if problem != "" {
		r.fail(f.Value.Position(), "%s: %s: %s", Kind, f.Key, problem)
	}
}

// valuesOf returns the value of a key in the format of its flag. problem describes a wrong type; it is "" if the type
// is correct.
func valuesOf(n *strictyaml.Node, flag *pflag.Flag) (values []string, problem string) {
	text, isText := n.Scalar.(string)
	_, isList := flag.Value.(pflag.SliceValue)
	switch {
	case n.Kind == strictyaml.Scalar && n.Scalar == nil:
		return nil, "expected a value"
	case isList && n.Kind == strictyaml.List:
		for _, item := range n.Items {
			text, ok := item.Scalar.(string)
			if !ok {
				return nil, "expected a list of strings"
			}
			values = append(values, text)
		}
		return values, ""
	case isList && isText:
		return kubeadmapi.SplitList(text), ""
	case isList:
		return nil, "expected a list of strings"
	case flag.Value.Type() == "bool":
		if on, ok := n.Scalar.(bool); ok {
			return []string{map[bool]string{true: "true", false: "false"}[on]}, ""
		}
		return nil, "expected true or false"
	case flag.Value.Type() == "int":
		if number, ok := n.Scalar.(json.Number); ok && !strings.ContainsAny(number.String(), ".eE") {
			return []string{number.String()}, ""
		}
		return nil, "expected an integer"
	case isText:
		return []string{text}, ""
	}
	if n.Kind == strictyaml.Scalar {
		return nil, "expected a string: quote the value"
	}
	return nil, "expected a string"
}

// setValue sets the value of a flag without marking it as changed. values has one element unless the flag is a list.
func setValue(flag *pflag.Flag, values []string) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	return flag.Value.Set(values[0])
}

// buildSettings sets c.settings to the values of the merged UpConfiguration, by the name of the flag of `up` that each
// key sets. It ignores invalid values; checkUp has added their errors.
func (r *reader) buildSettings(c *Config) {
	c.settings = map[string]setting{}
	doc := r.merged[Kind]
	if doc == nil {
		return
	}
	known := keys(r.flags)
	for _, f := range doc.Fields {
		if flag := known[f.Key]; flag != nil {
			if values, problem := valuesOf(f.Value, flag); problem == "" {
				c.settings[flag.Name] = setting{values: values, position: f.Position()}
			}
		}
	}
}

// ApplyTo sets the flags of `up` that are not set on the command line to the values in the files, without marking them
// as changed.
func (c *Config) ApplyTo(flags *pflag.FlagSet) error {
	for name, s := range c.settings {
		if flag := flags.Lookup(name); flag != nil && !flag.Changed {
			if err := setValue(flag, s.values); err != nil {
				return err // Load has validated the values
			}
		}
	}
	return nil
}

// Position returns the position of the key of a flag for messages; the name of the flag if no file sets it.
func (c *Config) Position(flag string) string {
	if s, ok := c.settings[flag]; ok {
		return s.position + ": " + keyOf(flag)
	}
	return "--" + flag
}

// sortedKeys returns the keys of m in lexical order.
func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
