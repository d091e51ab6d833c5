package upconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/kubeadmapi"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/internal/base/strictyaml"
)

// firstStart are flags that only have an effect when the cluster is created, or that a running cluster applies. They are not part of
// the configuration for which `up` replaces a running process.
var firstStart = []string{"node-name", "cluster-cidr", "service-cidr", "cluster-domain", "nodes", "with", "no-kubeconfig"}

// isFirstStart reports whether a running process need not be replaced when the flag has changed.
func isFirstStart(flag string) bool { return slices.Contains(firstStart, flag) }

// Text returns the effective configuration as documents in YAML: the keys whose values in flags are not the default,
// and the other documents. The KubeletConfiguration includes the files of --kubelet-config and --kubelet-config-dir.
// ApplyTo must have been called with flags. If forReplacing is set, it leaves out the settings that a running process
// does not need to be replaced for; the text is then "" for the default configuration.
func (c *Config) Text(flags *pflag.FlagSet, forReplacing bool) (string, error) {
	up := map[string]any{}
	for key, flag := range keys(flags) {
		if value := flag.Value.String(); value != flag.DefValue && !(forReplacing && isFirstStart(flag.Name)) {
			up[key] = valueOf(flag)
		}
	}
	for _, key := range []string{kubeletArgs, proxyArgs} {
		if n := c.documents[Kind].Get(key); n != nil {
			up[key] = json.RawMessage(n.JSON())
		}
	}
	kubelet, err := kubeletconfig.MergeFiles(jsonOf(c.documents[kubeletKind]), stringFlag(flags, "kubelet-config"), stringFlag(flags, "kubelet-config-dir"))
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	for _, k := range kinds() {
		var fields map[string]any
		switch {
		case k.kind == Kind:
			fields = up
		case k.kind == kubeletKind && kubelet != nil:
			fields = kubelet
		case c.documents[k.kind] != nil:
			if fields, err = decodeMap(c.documents[k.kind].JSON()); err != nil {
				return "", err
			}
			if forReplacing {
				delete(fields, "networking")
			}
		}
		delete(fields, "kind")
		delete(fields, "apiVersion")
		if len(fields) == 0 && (forReplacing || k.kind != Kind) {
			continue
		}
		if err := writeDocument(&out, k, fields); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

// ChangedKinds returns the kinds of the documents that differ between two results of Text for replacing, in the order
// in which they are printed. It returns nil if the texts are equal, and an error if one cannot be parsed.
func ChangedKinds(before, after string) ([]string, error) {
	if before == after {
		return nil, nil
	}
	contents := map[string][2]string{}
	for i, text := range []string{before, after} {
		docs, err := strictyaml.Parse("the configuration of the running cluster", []byte(text))
		if err != nil {
			return nil, err
		}
		for _, doc := range docs {
			content := contents[doc.Text("kind")]
			content[i] = string(doc.JSON())
			contents[doc.Text("kind")] = content
		}
	}
	var out []string
	for _, k := range kinds() {
		if content := contents[k.kind]; content[0] != content[1] {
			out = append(out, k.kind)
		}
	}
	return out, nil
}

// writeDocument writes a document, with the kind before the other keys.
func writeDocument(out *bytes.Buffer, k kind, fields map[string]any) error {
	if out.Len() > 0 {
		out.WriteString("---\n")
	}
	fmt.Fprintf(out, "apiVersion: %s\nkind: %s\n", k.apiVersion, k.kind)
	if len(fields) == 0 {
		return nil
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}
	out.Write(text)
	return nil
}

// decodeMap decodes a JSON object. Numbers keep all digits.
func decodeMap(data []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var out map[string]any
	if err := decoder.Decode(&out); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return out, nil
}

// stringFlag returns the value of a flag, or "" if it does not exist.
func stringFlag(flags *pflag.FlagSet, name string) string {
	if f := flags.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// valueOf returns the value of a flag as it is encoded in a file: a list of strings, a bool, a number or a string.
func valueOf(flag *pflag.Flag) any {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...) // not null
	}
	switch flag.Value.Type() {
	case "bool":
		return flag.Value.String() == "true"
	case "int":
		return json.Number(flag.Value.String())
	}
	return flag.Value.String()
}

// WriteDefaults writes a file with all keys and their defaults. It is valid, and does not change the configuration.
func WriteDefaults(w io.Writer, flags *pflag.FlagSet) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Settings of `hyperkube up`. Flags of the command take precedence.\napiVersion: %s\nkind: %s\n", APIVersion, Kind)
	known := keys(flags)
	for _, key := range sortedKeys(known) {
		text, err := yaml.Marshal(map[string]any{key: valueOf(known[key])})
		if err != nil {
			return fmt.Errorf("encoding the configuration: %w", err)
		}
		fmt.Fprintf(&out, "# %s\n%s", known[key].Usage, text)
	}
	fmt.Fprintf(&out, `# Flags of the kubelet and of kube-proxy, for example {name: node-labels, value: disk=ssd}.
%s: []
%s: []
---
# Names and flags of the control plane, as in kubeadm: https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
apiVersion: %s
kind: %s
apiServer:
  certSANs: []
  extraArgs: []
controllerManager:
  extraArgs: []
scheduler:
  extraArgs: []
etcd:
  local:
    extraArgs: []
`, kubeletArgs, proxyArgs, kubeadmapi.Version, clusterKind)
	for _, k := range kinds()[2:] {
		fmt.Fprintf(&out, "---\n# %s: the defaults of Kubernetes apply%s\napiVersion: %s\nkind: %s\n", k.kind, exceptions[k.kind], k.apiVersion, k.kind)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// exceptions describes where the defaults of a kind differ from those of Kubernetes.
var exceptions = map[string]string{
	kubeletKind:   ", except seccompDefault: true, podPidsLimit: 4096,\n# and thresholds of 5% of the disk in evictionHard.",
	proxyKind:     ".",
	schedulerKind: ".",
}
