package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
)

func newPrivacy() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "privacy",
		Short: "Who may see what in lists: publish or apply events",
		Long: "Lists show what the privacy rules allow at each read. The rules are what versioned events said last.\n" +
			"Events come through stream privacy-events, or straight to where the rules are asked; since the version\n" +
			"decides, both ways may be used for the same event.",
	})
	cmd.AddCommand(newPrivacyPublish(), newPrivacyApply())
	return cmd
}

// appliedJSON is what --output json prints of events.
type appliedJSON struct {
	Applied int `json:"applied"`
	// Passed events were not newer than what is stored.
	Passed int `json:"passed"`
}

// aboutEvents is what the commands on events say of their FILE.
const aboutEvents = "account, video and block events, one JSON object a line; - reads standard input. What is not\n" +
	"newer than the stored version changes nothing, so the same file may be given again, also after an\n" +
	"error in its middle."

func newPrivacyApply() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Apply account, video and block events at once, without Kafka",
		Long: "Apply " + aboutEvents + " They hold from the next read of a list on.\n" +
			"The audit has each event, who gave it and why, before it is stored.",
		Example: `  echo '{"type":"block","blockerId":"u7","blockedId":"u8","version":1,"active":true}' | tidemark privacy apply -`,
		Args:    exactly(1, "a FILE of events, or -"),
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "text", "json")
	by := asFlag(cmd)
	reason := reasonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if err := out.check(); err != nil {
			return err
		}
		who, err := by.name()
		if err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		rules, err := privacy.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer rules.Close()
		db, err := control.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer db.Close()
		var n appliedJSON
		err = eachEvent(cmd, given[0], func(e privacy.Event) error {
			subject, _, err := privacy.Message(e)
			if err != nil {
				return err
			}
			if err := db.Audit(cmd.Context(), control.Entry{Who: who, Action: "privacy.event", Subject: subject, Reason: *reason, Detail: map[string]any{"event": e}}); err != nil {
				return err
			}
			applied, err := rules.Apply(cmd.Context(), e)
			switch {
			case err != nil:
				return err
			case applied:
				n.Applied++
			default:
				n.Passed++
			}
			return nil
		})
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), n, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%d events applied, %d not newer than what is stored\n", n.Applied, n.Passed)
			return err
		})
	}
	return cmd
}

// publishedJSON is what --output json prints of published events.
type publishedJSON struct {
	Published int `json:"published"`
}

func newPrivacyPublish() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "publish FILE",
		Short: "Send account, video and block events to stream privacy-events",
		Long: "Send to stream privacy-events " + aboutEvents + " Role privacy applies them.\n" +
			"The audit has each event, who sent it and why, before it is sent.",
		Example: `  tidemark privacy publish accounts.jsonl`,
		Args:    exactly(1, "a FILE of events, or -"),
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "text", "json")
	by := asFlag(cmd)
	reason := reasonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if err := out.check(); err != nil {
			return err
		}
		who, err := by.name()
		if err != nil {
			return err
		}
		cfg, err := at.load(config.PartKafka, config.PartControl)
		if err != nil {
			return err
		}
		n, err := publishPrivacy(cmd, cfg, given[0], control.Entry{Who: who, Action: "privacy.published", Reason: *reason})
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), publishedJSON{n}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%d events published\n", n)
			return err
		})
	}
	return cmd
}

// publishPrivacy returns when Kafka has acked every event before the first that
// cannot be published. The audit has each as told, before it is sent.
func publishPrivacy(cmd *cobra.Command, cfg config.Config, file string, told control.Entry) (n int, err error) {
	topo, err := cfg.Topology()
	if err != nil {
		return 0, err
	}
	client, err := kafkaClient(cfg)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	db, err := control.Open(cmd.Context(), cfg.Control)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	topic := topo.Topic(topology.PrivacyEvents)
	var failed kgo.FirstErrPromise
	err = eachEvent(cmd, file, func(e privacy.Event) error {
		key, value, err := privacy.Message(e)
		if err != nil {
			return err
		}
		told.Subject, told.Detail = key, map[string]any{"event": e}
		if err := db.Audit(cmd.Context(), told); err != nil {
			return err
		}
		n++
		client.Produce(cmd.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: value}, failed.Promise())
		return nil
	})
	if sent := failed.Err(); sent != nil {
		sent = fmt.Errorf("sending privacy events: %w", sent)
		err = errors.Join(err, sent)
	}
	return n, err
}

// eachEvent gives the events of a file, or of standard input, to do, up to the
// first line that is none or that fails.
func eachEvent(cmd *cobra.Command, file string, do func(privacy.Event) error) error {
	in := cmd.InOrStdin()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("reading privacy events: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	lines := bufio.NewScanner(in)
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		e, err := privacy.ParseEvent(lines.Bytes())
		if err == nil {
			err = do(e)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading privacy events: %w", err)
	}
	return nil
}
