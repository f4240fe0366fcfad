import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Button, Notice } from "./ui";

/** A pane whose code is read when it is opened first. */
export function Later({ load }: { load: () => Promise<ComponentType> }): JSX.Element {
  const [View, setView] = useState<ComponentType | null>(null);
  const [hasFailed, setFailed] = useState(false);
  useEffect(() => {
    load().then(
      (found) => setView(() => found),
      () => setFailed(true),
    );
  }, []);
  if (View) return <View />;
  return (
    <div class="pane" aria-busy={!hasFailed}>
      {hasFailed && (
        <Notice>
          <p>This part of the page cannot be loaded. The server may be another version by now, or away.</p>
          <Button label="Load the page again" onClick={() => location.reload()} />
        </Notice>
      )}
    </div>
  );
}
