package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"hyperkube/components/cluster/certrenewal"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/host/layout"
)

// NewCerts returns the command `certs`, whose subcommands check and renew the certificates of a control plane node,
// generate certificate signing requests, and generate certificate keys.
func NewCerts() *cobra.Command {
	var root string
	cmd := &cobra.Command{Use: "certs", Short: "Check the expiration of certificates and renew them", Args: cobra.NoArgs}
	command.RootFlag(cmd.PersistentFlags(), &root)
	cmd.AddCommand(newCertsCheck(&root), newCertsRenew(&root), newCertsGenerateCSR(&root), &cobra.Command{
		Use: "certificate-key", Short: "Generate a certificate key for init --upload-certs --certificate-key", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), joindiscovery.NewCertificateKey())
		},
	})
	return cmd
}

// expirationInfo is the JSON output of `certs check-expiration`, in the format of kubeadm.
type (
	expirationInfo struct {
		metav1.TypeMeta `json:",inline"`
		Certificates    []expiration `json:"certificates"`
		Authorities     []expiration `json:"certificateAuthorities"`
	}

	expiration struct {
		Name     string      `json:"name"`
		Expires  metav1.Time `json:"expirationDate"`
		Residual int64       `json:"residualTime"` // seconds
		External bool        `json:"externallyManaged"`
		CA       string      `json:"caName,omitempty"`
		Missing  bool        `json:"missing"`
	}
)

// newCertsCheck returns the command `certs check-expiration`.
func newCertsCheck(root *string) *cobra.Command {
	var o command.Output
	cmd := &cobra.Command{
		Use: "check-expiration", Short: "Check certificate expiration of this control plane node", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := checkExpiration(command.Layout(*root), time.Now())
			if err != nil {
				return err
			}
			return o.Write(cmd.OutOrStdout(), info, info.print)
		},
	}
	o.Flag(cmd)
	return cmd
}

// checkExpiration returns the expiration of all certificates and authorities of this control plane node, at the time
// now. It returns an error on other machines.
func checkExpiration(l layout.Node, now time.Time) (*expirationInfo, error) {
	m := certrenewal.LocalControlPlane(l)
	if !layout.Exists(filepath.Join(m.PKI, "apiserver.crt")) && !clusterconfig.IsControlPlane(l) {
		return nil, command.PreflightError(errors.New("this machine is not a control plane node: certificates of other nodes are renewed by the node process"))
	}
	certificates, authorities, err := m.Inspect()
	if err != nil {
		return nil, err
	}
	of := func(states []certrenewal.State) []expiration {
		list := []expiration{}
		for _, s := range states {
			e := expiration{Name: s.Name, External: s.External, CA: s.Authority.Name, Missing: s.Cert == nil}
			if s.Cert != nil {
				e.Expires = metav1.NewTime(s.Cert.NotAfter)
				e.Residual = int64(s.Cert.NotAfter.Sub(now) / time.Second)
			}
			list = append(list, e)
		}
		return list
	}
	return &expirationInfo{
		TypeMeta:     metav1.TypeMeta{Kind: "CertificateExpirationInfo", APIVersion: "output.kubeadm.k8s.io/v1alpha3"},
		Certificates: of(certificates), Authorities: of(authorities),
	}, nil
}

// print writes the certificates and authorities with their expiration to out, as the tables that kubeadm prints.
func (i *expirationInfo) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 10, 4, 3, ' ', 0)
	yes := map[bool]string{true: "yes", false: "no"}
	fmt.Fprintln(w, "CERTIFICATE\tEXPIRES\tRESIDUAL TIME\tCERTIFICATE AUTHORITY\tEXTERNALLY MANAGED")
	for _, c := range i.Certificates {
		if c.Missing {
			fmt.Fprintf(w, "!MISSING! %s\t\t\t\t\n", c.Name)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Name, c.expires(), c.residual(), c.CA, yes[c.External])
	}
	fmt.Fprintln(w, "\nCERTIFICATE AUTHORITY\tEXPIRES\tRESIDUAL TIME\tEXTERNALLY MANAGED")
	for _, c := range i.Authorities {
		if c.Missing {
			fmt.Fprintf(w, "!MISSING! %s\t\t\t\n", c.Name)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Name, c.expires(), c.residual(), yes[c.External])
	}
	return w.Flush()
}

// expires returns the expiration time as text in UTC.
func (e *expiration) expires() string { return e.Expires.UTC().Format("Jan 02, 2006 15:04 MST") }

// residual returns the remaining lifetime as text.
func (e *expiration) residual() string {
	return duration.HumanDuration(time.Duration(e.Residual) * time.Second)
}

// newCertsRenew returns the command `certs renew`.
func newCertsRenew(root *string) *cobra.Command {
	return &cobra.Command{
		Use: "renew NAME ...|all", Short: "Renew certificates of this control plane node, by the names that check-expiration prints", Args: cobra.MinimumNArgs(1),
		Long: "Renew certificates of this control plane node, by the names that check-expiration prints. They get new keys and keep their\n" +
			"names and usages. Running components reload them; the controller manager and the scheduler restart.\n" +
			"The node process of a control plane node renews certificates automatically when a third of their lifetime is left.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			return renewNamed(cmd.OutOrStdout(), command.Layout(*root), args)
		},
	}
}

// renewNamed renews the certificates with these names, or all if the only name is "all", and prints the results. It
// returns an error if this machine is not a control plane node of init or join.
func renewNamed(out io.Writer, l layout.Node, names []string) error {
	if !clusterconfig.IsControlPlane(l) {
		return command.PreflightError(errors.New("this machine is not a control plane node of init or join: certificates of `hyperkube up` and of other nodes are renewed automatically"))
	}
	m := certrenewal.LocalControlPlane(l)
	states, _, err := m.Inspect()
	if err != nil {
		return err
	}
	byName := map[string]certrenewal.State{}
	for _, s := range states {
		byName[s.Name] = s
	}
	if len(names) == 1 && names[0] == "all" {
		names = nil
		for _, s := range states {
			if s.Cert == nil {
				fmt.Fprintf(out, "MISSING! certificate %s\n", s.Name)
				continue
			}
			names = append(names, s.Name)
		}
	}
	for _, name := range names {
		if s, ok := byName[name]; !ok || s.Cert == nil {
			return command.ConfigError(fmt.Errorf("certificate %q does not exist: see `hyperkube certs check-expiration`", name))
		}
	}
	for _, name := range names {
		if err := renewOne(m, byName[name].Certificate); err != nil {
			return err
		}
		fmt.Fprintf(out, "certificate %s renewed\n", name)
	}
	return certrenewal.UpdateManifests(l)
}

// renewOne renews one certificate. If the user's kubeconfig contains it, it is replaced there as
// well.
func renewOne(m certrenewal.ControlPlane, c certrenewal.Certificate) error {
	old, err := c.Read()
	if err != nil {
		return err
	}
	pair, err := m.Renew(c)
	if err != nil {
		return err
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	_, err = target.ReplaceCertificate(old, pair.CertPEM, pair.KeyPEM)
	return err
}
