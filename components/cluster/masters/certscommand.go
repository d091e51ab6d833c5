package masters

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

	"hyperkube/components/cluster/certs"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/trust"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
)

// NewCerts makes the command `certs`.
func NewCerts() *cobra.Command {
	var root string
	cmd := &cobra.Command{Use: "certs", Short: "Tell when the certificates of a master end, and renew them", Args: cobra.NoArgs}
	command.RootFlag(cmd.PersistentFlags(), &root)
	cmd.AddCommand(newCertsCheck(&root), newCertsRenew(&root), newCertsRequests(&root), &cobra.Command{
		Use: "certificate-key", Short: "Print a new key for init --upload-certs --certificate-key", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), trust.NewCertificateKey()) },
	})
	return cmd
}

// expirationInfo is how kubeadm tells it to programs.
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

func newCertsCheck(root *string) *cobra.Command {
	var o command.Output
	cmd := &cobra.Command{
		Use: "check-expiration", Short: "Tell when the certificates of this machine's control plane end", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := lookExpiration(command.Layout(*root), time.Now())
			if err != nil {
				return err
			}
			return o.Write(cmd.OutOrStdout(), info, info.print)
		},
	}
	o.Flag(cmd)
	return cmd
}

func lookExpiration(l layout.Node, now time.Time) (*expirationInfo, error) {
	m := certs.OfMachine(l)
	if !layout.Exists(filepath.Join(m.PKI, "apiserver.crt")) && !identity.IsMaster(l) {
		return nil, command.PreflightError(errors.New("this machine is no master: the certificates of its node are renewed by the node itself"))
	}
	certificates, authorities, err := m.Look()
	if err != nil {
		return nil, err
	}
	of := func(states []certs.State) []expiration {
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

// print prints the tables that kubeadm prints.
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

func (e *expiration) expires() string { return e.Expires.UTC().Format("Jan 02, 2006 15:04 MST") }

func (e *expiration) residual() string {
	return duration.HumanDuration(time.Duration(e.Residual) * time.Second)
}

func newCertsRenew(root *string) *cobra.Command {
	return &cobra.Command{
		Use: "renew NAME ...|all", Short: "Make certificates of this master anew, by the names that check-expiration tells", Args: cobra.MinimumNArgs(1),
		Long: "Make certificates of this master anew, by the names that check-expiration tells, with new keys and for the same names\n" +
			"and uses. Who runs sees it at once; the controller manager and the scheduler start again when theirs is another.\n" +
			"The node of a master does this by itself when a third of a certificate's time is left.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.NeedRoot(); err != nil {
				return err
			}
			return renewNamed(cmd.OutOrStdout(), command.Layout(*root), args)
		},
	}
}

// renewNamed renews certificates by their names.
func renewNamed(out io.Writer, l layout.Node, names []string) error {
	if !identity.IsMaster(l) {
		return command.PreflightError(errors.New("this machine is no master that init or join has made: certificates of `hyperkube up` and of nodes are renewed by themselves"))
	}
	m := certs.OfMachine(l)
	states, _, err := m.Look()
	if err != nil {
		return err
	}
	byName := map[string]certs.State{}
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
			return command.ConfigError(fmt.Errorf("there is no certificate %q: see `hyperkube certs check-expiration`", name))
		}
	}
	for _, name := range names {
		if err := renewOne(m, byName[name].Certificate); err != nil {
			return err
		}
		fmt.Fprintf(out, "certificate %s renewed\n", name)
	}
	return certs.Stamp(l)
}

// renewOne renews one, in the user's kubeconfig too if it is there.
func renewOne(m certs.Master, c certs.Certificate) error {
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
